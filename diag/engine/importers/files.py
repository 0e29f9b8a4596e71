"""What each file of a folder is: by its content where that shows it, by its name for the rank, the child and the
moment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from diag.engine.importers.pyspy_text import is_dump
from diag.sources.collectives import nccl_ras
from diag.sources.gpu import cuda_core

LARGEST_FILE = 64 << 20  # of anything but a log: a py-spy dump is 100 kB, a Flight Recorder file some MB
_HEAD = 64 << 10
OF_A_MOMENT = ("pyspy", "proc_", "ras", "faulthandler")  # how their kinds begin

_RANK = re.compile(r"rank[_-]?(\d{1,6})(?![0-9])", re.IGNORECASE)
_CHILD = re.compile(r"child[_-]?(\d{1,10})", re.IGNORECASE)
_LAST = re.compile(r"(\d{1,6})(?:\.json)?$")
_PROC = re.compile(r"proc_(stat|status|io|wchan|limits)_", re.IGNORECASE)
# The word that says what a file is begins it, or follows the name of the moment: `hang_pyspy_rank0.json`.
_MOMENT = re.compile(
    r"^(.*?)[_-]?(?:py-?spy|proc_|ras|ps\b|stacks?|cgroup|fr_|nccl_trace|comm_lib_trace|rank)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """`kind`: log, pyspy_json, pyspy_text, faulthandler, recorder, ras, nvml, dmesg, manifest, power_caps,
    gpu_core, or proc_WHAT. Of a GPU core dump `pids` are the numbers in its name: one of them is a process,
    not a rank."""

    path: Path
    kind: str
    rank: int | None = None
    child: int | None = None
    moment: str = ""
    pids: tuple[int, ...] = ()


def rank_of_log(path: Path) -> int | None:
    """The rank whose own log it is, as its name says; torchrun --log-dir keeps one folder a local rank.

    >>> rank_of_log(Path("logs/rank3.log")), rank_of_log(Path("x/attempt_0/1/stderr.log")), rank_of_log(Path("train.log"))
    (3, 1, None)
    """
    folder, named = path.parent.name, _number(_RANK, path)
    own = folder.isdecimal() and len(folder) < 7 and path.parent.parent.name.startswith("attempt_")
    return int(folder) if named is None and own else named


def leads_out(path: Path, directory: Path) -> bool:
    """Whether it is a link to what lies outside of the directory: in evidence of strangers it would show them
    files of ours."""
    # realpath, since Path.resolve raises for a link to itself; such a one is no file for anybody.
    return path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))


def read_some(path: Path, most: int = LARGEST_FILE) -> bytes:
    with path.open("rb") as file:
        return file.read(most)


def text_of(path: Path, most: int = LARGEST_FILE) -> str:
    return read_some(path, most).decode("utf-8", "replace")


def classify(paths: Iterable[Path]) -> tuple[list[EvidenceFile], list[Path]]:
    """What can be used, and what cannot. Raises OSError for a file that cannot be read."""
    used: list[EvidenceFile] = []
    unused: list[Path] = []
    for path in paths:
        kind = _kind(path)
        if kind is None:
            unused.append(path)
            continue
        number = _number(_RANK, path)
        if number is None and kind == "recorder":
            number = _number(_LAST, path)
        moment = _MOMENT.match(path.name) if kind.startswith(OF_A_MOMENT) else None
        pids = tuple(map(int, re.findall(r"(?<!\d)\d{1,9}(?!\d)", path.name))) if kind == "gpu_core" else ()
        used.append(
            EvidenceFile(path, kind, number, _number(_CHILD, path), moment[1] if moment else "", pids)
        )
    return used, unused


def _number(pattern: re.Pattern[str], path: Path) -> int | None:
    found = pattern.search(path.name)
    return int(found[1]) if found else None


def _kind(path: Path) -> str | None:
    """None for what diag has no use for. The content decides; names are people's own."""
    name = path.name.lower()
    proc = _PROC.search(name)
    if proc:
        return f"proc_{proc[1]}"
    if name in ("meta.json", "manifest.json"):
        return "manifest"
    head = read_some(path, _HEAD)
    if cuda_core.is_core_dump(head):
        return "gpu_core"
    text = head.decode("utf-8", "replace")
    if head[:1] == b"\x80" or head.startswith(b"\xef\xbf\xbd\x02"):
        return "recorder" if b"pg_config" in head or b"entries" in head else None
    if is_dump(text):
        return "pyspy_text"
    if text.lstrip()[:1] in ("[", "{") and (found := _json_kind(text)):
        return found
    if nccl_ras.is_answer(text[:1000]):
        return "ras"
    if "(most recent call first):" in text and text.startswith(
        ("Thread ", "Current thread ", "Fatal ", "Timeout ")
    ):
        return "faulthandler"
    if "NVIDIA-SMI" in text and re.search(r"\dW / +\d+W", text):
        return "power_caps"
    if "dmesg" in name or "kern.log" in name or re.match(r"\[ *\d+\.\d{6}\] ", text):
        return "dmesg"
    if name.endswith((".log", ".out", ".err", ".stdout", ".stderr")):
        return "log"
    return None


def _json_kind(text: str) -> str | None:
    first = text.lstrip()
    if first.startswith("[") and '"frames"' in text and '"thread_id"' in text:
        return "pyspy_json"
    if '"pg_config"' in text or ('"entries"' in text and '"collective_seq_id"' in text):
        return "recorder"
    if '"communicators_count"' in text:
        return "ras"
    try:
        row = json.loads(first.partition("\n")[0])
    except (ValueError, RecursionError):
        return None
    return "nvml" if isinstance(row, dict) and "gpu" in row and ("util" in row or "power_mw" in row) else None
