"""Small files that a rank's variables name: locks and marks that a program makes for itself. Whether the process still is
there whose number is all that one holds, and how old the file is; of those without a number only what is older than the rank.

Opened as the rank itself may (`job_files`). Of their content nothing but the number is kept.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from diag.model.observations import Folder, Mark
from diag.sources.host.job_files import Files
from diag.sources.host.process_tree import PROC, colon_fields, read_process, read_text
from diag.sources.payload import from_mapping, mapping, sequence, word

_MOST_BYTES = 256
MOST = 4
_MOST_TRIED = 8
_MOST_FOLDERS, _MOST_NAMES = 2, 64
_LONGEST = 120
_LATER_SECONDS = 5.0  # a process that began so long after the file was written did not write it
_NUMBERS = re.compile(r"\b\d{1,10}\b")
_WORDS = re.compile(r"[A-Za-z][\w.-]*")
_KEYS = ("pid", "host", "hostname", "node", "rank", "owner", "process", "time", "started", "locked", "by")


def read(
    files: Files, paths: Iterable[str], rank: tuple[int, int], hidden: Callable[[str], str], proc: Path = PROC
) -> list[dict[str, Any]]:
    """Of these paths those that are there, as rows of `Mark`. `rank`: its pid, and its start in ticks since the boot; `hidden`
    takes secrets out of a path."""
    pid, ticks = rank
    if inside_a_namespace(pid, proc):
        return []
    started = began_at(ticks, proc)
    found: list[dict[str, Any]] = []
    for path in list(dict.fromkeys(paths))[:_MOST_TRIED]:
        try:
            fd = files.open_file(path)
        except (OSError, ValueError):
            continue
        try:
            facts = os.fstat(fd)
            text = os.pread(fd, _MOST_BYTES + 1, 0).decode("utf-8", "replace")
        except OSError:
            continue
        finally:
            os.close(fd)
        if facts.st_size > _MOST_BYTES or not stat.S_ISREG(facts.st_mode):
            continue
        number = owner_in(text, socket.gethostname())
        older = facts.st_mtime < started
        if number is None and not older:
            continue
        age = max(0.0, time.time() - facts.st_mtime)
        found.append({
            "path": hidden(path)[-_LONGEST:], "age_seconds": round(age, 1), "pid": number or 0,
            "state": _state(number, facts.st_mtime, proc) if number is not None else "unnumbered", "older": older,
        })  # fmt: skip
    return sorted(found, key=lambda row: not row["pid"])[:MOST]


def owner_in(text: str, host: str) -> int | None:
    """The process's number that is all there is in a file, beside this host's name and words such as pid; None where there
    is more, or another host.

    >>> owner_in("812\\n", "gpu-3"), owner_in("pid: 812, host: gpu-3", "gpu-3"), owner_in("gpu-7:812", "gpu-3")
    (812, 812, None)
    >>> owner_in("", "gpu-3"), owner_in("12 files of 40", "gpu-3")
    (None, None)
    """
    rest = text.replace(host, " ") if host else text
    words = {word.lower() for word in _WORDS.findall(rest)}
    numbers = _NUMBERS.findall(rest)
    if len(numbers) != 1 or not words <= {*_KEYS}:
        return None
    return int(numbers[0]) or None


def inside_a_namespace(pid: int, proc: Path = PROC) -> bool:
    """The rank has numbers of its own for processes."""
    fields = colon_fields(read_text(f"{proc}/{pid}/status"))
    return len(fields.get("NSpid", str(pid)).split()) > 1


def _state(pid: int, written: float, proc: Path) -> str:
    process = read_process(pid, proc)
    if process is None or process.state == "Z":
        return "gone" if process is not None or not Path(f"{proc}/{pid}").exists() else "unknown"
    return "replaced" if began_at(process.ticks, proc) > written + _LATER_SECONDS else "lives"


def began_at(ticks: int, proc: Path = PROC) -> float:
    """Seconds since the epoch, of a process's start in ticks since the boot."""
    up = read_text(f"{proc}/uptime").partition(" ")[0]
    return time.time() - (float(up) - ticks / os.sysconf("SC_CLK_TCK")) if up else 0.0


def folders(files: Files, paths: Iterable[str], hidden: Callable[[str], str]) -> list[dict[str, Any]]:
    """Of these paths the folders, each with the names in it and their ages in seconds; none of more than `_MOST_NAMES`."""
    found: list[dict[str, Any]] = []
    for path in list(dict.fromkeys(paths))[:_MOST_TRIED]:
        if len(found) == _MOST_FOLDERS:
            break
        with contextlib.suppress(OSError, ValueError):
            with files.scandir(path) as entries:
                names = [one.name for one in itertools.islice(entries, _MOST_NAMES + 1)]
            if len(names) <= _MOST_NAMES:
                now = time.time()
                rows = [
                    [hidden(name)[:_LONGEST], round(max(0.0, now - files.stat(f"{path}/{name}").st_mtime), 1)]
                    for name in sorted(names)
                ]
                found.append({"path": hidden(path)[-_LONGEST:], "names": rows})
    return found


def folders_of(rows: Iterable[Any]) -> Iterator[Folder]:
    for row in list(rows)[:_MOST_FOLDERS]:
        found = mapping(row)
        names = [sequence(one) for one in sequence(found["names"])[:_MOST_NAMES]]
        yield Folder(
            word(found["path"], 4096), tuple((word(name, _LONGEST), float(age)) for name, age in names)
        )


def marks_of(rows: Iterable[Any]) -> Iterator[Mark]:
    for row in list(rows)[:MOST]:
        yield from_mapping(Mark, mapping(row))
