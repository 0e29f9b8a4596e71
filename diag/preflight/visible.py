"""What CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES show a process, as CUDA and PyTorch read them. Pure
functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

_LEADING_NUMBER = re.compile(r"[+-]?\d{1,9}")


@dataclass(frozen=True, slots=True)
class Visible:
    """`count` None: nothing limits it and the devices were not seen. `wrong` says why it is fewer than were
    written; `mig`: these are instances of MIG. `devices` are the entries that count."""

    variable: str = ""  # "" where none is set
    value: str = ""
    count: int | None = None
    devices: tuple[str, ...] = ()
    wrong: str = ""
    mig: bool = False

    @property
    def said(self) -> str:
        return f"{self.variable}={self.value}" if self.variable else ""


def visible_gpus(environment: Mapping[str, str], gpus: Sequence[str] | None) -> Visible:
    """`gpus` are the uuids of the GPUs here, in order; None where they could not be read.

    As the driver 580.159 does it on an H100 (cuInit, cuDeviceGetCount), and torch/cuda/__init__.py
    (_parse_visible_devices, 2.13): the first entry that is not a device ends the list, one that is listed
    twice leaves none, `1gpu` is 1.

    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "0,9,1"}, ("GPU-a", "GPU-b")).count
    1
    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "1,1"}, None).wrong
    '1 is listed twice, so CUDA shows no GPU'
    """
    name = "CUDA_VISIBLE_DEVICES"
    value = environment.get(name)
    if value is None:
        every = tuple(map(str, range(len(gpus or ()))))
        return Visible(count=None if gpus is None else len(gpus), devices=every)
    words = _words(value)
    if words and words[0].startswith(("GPU-", "MIG-")):
        prefix = words[0][:4]
        return _shown(name, value, words, partial(_by_uuid, prefix=prefix, gpus=gpus), mig=prefix == "MIG-")
    there = None if gpus is None else len(gpus)
    return _shown(name, value, words, partial(_by_number, there=there, who="CUDA", kind="GPU"))


def visible_npus(environment: Mapping[str, str], npus: int | None) -> Visible:
    """Ascend's runtime knows numbers only."""
    name = "ASCEND_RT_VISIBLE_DEVICES"
    value = environment.get(name)
    if value is None:
        return Visible(count=npus)
    by_number = partial(_by_number, there=npus, who="the runtime", kind="NPU")
    return _shown(name, value, _words(value), by_number)


def _words(value: str) -> list[str]:
    words = [word.strip() for word in value.split(",")]
    return [] if words == [""] else words


def _shown(
    name: str, value: str, words: Sequence[str], read: Callable[[str], tuple[str, str]], *, mig: bool = False
) -> Visible:
    """`read` gives the device that an entry names ("" where the list ends there), and what is wrong with it."""
    kept: list[str] = []
    wrong = ""
    for word in words:
        device, why = read(word)
        if device in kept:
            who, kind = ("the runtime", "NPU") if name.startswith("ASCEND") else ("CUDA", "GPU")
            return Visible(name, value, 0, (), f"{device} is listed twice, so {who} shows no {kind}", mig)
        wrong = why or wrong
        if not device:
            break
        kept.append(device)
    return Visible(name, value, len(kept), tuple(kept), wrong, mig)


def _by_number(word: str, *, there: int | None, who: str, kind: str) -> tuple[str, str]:
    found = _LEADING_NUMBER.match(word)
    number = int(found[0]) if found else -1
    if number >= 0 and (there is None or number < there):
        return str(number), f"{who} reads {word!r} as {number}" if found and found[0] != word else ""
    if word == "-1":  # so people hide all, or what follows, on purpose
        return "", ""
    verb = "is" if there == 1 else "are"
    have = f": there {verb} {there} here" if there is not None and number >= 0 else ""
    article = "an" if kind == "NPU" else "a"
    return "", f"{who} stops at {word!r}, which is not {article} {kind}{have}"


def _by_uuid(word: str, *, prefix: str, gpus: Sequence[str] | None) -> tuple[str, str]:
    if not word.startswith(prefix):
        return "", f"CUDA stops at {word!r}, which does not begin with {prefix}"
    if prefix == "MIG-" or gpus is None:
        return word, ""
    matching = [gpu for gpu in gpus if gpu.startswith(word) and word != prefix]
    if len(matching) == 1:
        return word, ""
    which = "the beginning of several GPUs" if matching else "not a GPU here"
    return "", f"CUDA stops at {word!r}, which is {which}"
