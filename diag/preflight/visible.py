"""What CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES show a process, as CUDA and PyTorch read them. Pure
functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEADING_NUMBER = re.compile(r"[+-]?\d{1,9}")


@dataclass(frozen=True, slots=True)
class Visible:
    """`count` None: nothing limits it and nobody saw the devices. `wrong` says why it is fewer than were
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
    """`gpus` are the uuids of the GPUs here, in order; None where nobody could look.

    As the driver 580.159 does it on an H100 (cuInit, cuDeviceGetCount), and torch/cuda/__init__.py
    (_parse_visible_devices, 2.13): the first entry that is no device ends the list, one that stands there
    twice leaves none, `1gpu` is 1.

    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "0,9,1"}, ("GPU-a", "GPU-b")).count
    1
    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "1,1"}, None).wrong
    '1 stands there twice, and CUDA then shows no GPU at all'
    """
    name = "CUDA_VISIBLE_DEVICES"
    value = environment.get(name)
    if value is None:
        return Visible(
            count=None if gpus is None else len(gpus), devices=tuple(map(str, range(len(gpus or ()))))
        )
    words = [word.strip() for word in value.split(",")]
    if words == [""]:
        return Visible(name, value, 0)
    if words[0].startswith(("GPU-", "MIG-")):
        return _by_uuid(name, value, words, gpus)
    return _by_number(name, value, words, None if gpus is None else len(gpus), "CUDA", "GPU")


def visible_npus(environment: Mapping[str, str], npus: int | None) -> Visible:
    """Ascend's runtime knows numbers only."""
    name = "ASCEND_RT_VISIBLE_DEVICES"
    value = environment.get(name)
    if value is None:
        return Visible(count=npus)
    words = [word.strip() for word in value.split(",")]
    if words == [""]:
        return Visible(name, value, 0)
    return _by_number(name, value, words, npus, "the runtime", "NPU")


def _by_number(name: str, value: str, words: list[str], there: int | None, who: str, kind: str) -> Visible:  # noqa: PLR0917
    kept: list[str] = []
    wrong = ""
    for word in words:
        found = _LEADING_NUMBER.match(word)
        number = int(found[0]) if found else -1
        if str(number) in kept:
            return Visible(
                name, value, 0, (), f"{number} stands there twice, and {who} then shows no {kind} at all"
            )
        if number < 0 or (there is not None and number >= there):
            # -1 is how people hide all, or what follows, on purpose
            if word != "-1":
                have = (
                    f": there {'is' if there == 1 else 'are'} {there} here"
                    if there is not None and number >= 0
                    else ""
                )
                wrong = f"{who} stops at {word!r}, which is no {kind}{have}"
            break
        if found and found[0] != word:
            wrong = f"{who} reads {word!r} as {number}"
        kept.append(str(number))
    return Visible(name, value, len(kept), tuple(kept), wrong)


def _by_uuid(name: str, value: str, words: list[str], gpus: Sequence[str] | None) -> Visible:
    prefix = words[0][:4]
    kept: list[str] = []
    wrong = ""
    for word in words:
        if word in kept:
            return Visible(
                name,
                value,
                0,
                (),
                f"{word} stands there twice, and CUDA then shows no GPU at all",
                prefix == "MIG-",
            )
        matching = [gpu for gpu in gpus or () if gpu.startswith(word) and word != prefix]
        if not word.startswith(prefix):
            wrong = f"CUDA stops at {word!r}, which does not begin with {prefix}"
        elif prefix == "GPU-" and gpus is not None and len(matching) != 1:
            wrong = f"CUDA stops at {word!r}, which is {'no GPU here' if not matching else 'the begin of several GPUs'}"
        if wrong:
            break
        kept.append(word)
    return Visible(name, value, len(kept), tuple(kept), wrong, prefix == "MIG-")
