"""Limits of the kernel that a process has come to: a file as long as it may make one, as many descriptors as it may have, a
file system without room. What it writes or opens there fails again each time.

Read of /proc/PID/limits and of what it has open. Files are only asked where a limit holds for them, and no file system of a
process that is in uninterruptible sleep: that one may not answer.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from diag.model.observations import Reached
from diag.sources.host.process_tree import PROC, read_process, read_text
from diag.sources.payload import from_mapping, mapping
from diag.sources.waits.proc_files import fdinfo, open_mode

MOST = 4
_MOST_OPEN = 256  # descriptors that are looked at
_MOST_DEVICES = 8
_LONGEST = 120
_FILE_SIZE, _OPEN_FILES = "Max file size", "Max open files"


def read(pid: int, hidden: Callable[[str], str], proc: str | os.PathLike[str] = PROC) -> list[dict[str, Any]]:
    """Rows of `Reached`, empty where no limit is reached or none may be seen. `hidden` takes secrets out of a path."""
    process = read_process(pid, os.fspath(proc))
    if process is None or process.state not in "SR":
        return []
    base = f"{os.fspath(proc)}/{pid}"
    limits = _soft(read_text(f"{base}/limits"))
    try:
        numbers = sorted(int(name) for name in os.listdir(f"{base}/fd"))
    except (OSError, ValueError):
        return []
    found: list[dict[str, Any]] = []
    most = limits.get(_OPEN_FILES)
    if most is not None and len(numbers) >= most:
        found.append(_row("open_files", "", -1, len(numbers)))
    longest = limits.get(_FILE_SIZE)
    devices: set[int] = set()
    for number in numbers[:_MOST_OPEN]:
        with contextlib.suppress(OSError, ValueError):
            if open_mode(fdinfo(os.fspath(proc), pid, number)) == os.O_RDONLY:
                continue
            path = os.readlink(f"{base}/fd/{number}")
            if not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/sys/")):
                continue
            facts = os.stat(f"{base}/fd/{number}")  # noqa: PTH116 - it leads there whatever its name is
            if not stat.S_ISREG(facts.st_mode):
                continue
            if longest is not None and facts.st_size >= longest:
                found.append(_row("file_size", hidden(path), number, facts.st_size))
            elif facts.st_dev not in devices and len(devices) < _MOST_DEVICES:
                devices.add(facts.st_dev)
                space = os.statvfs(f"{base}/fd/{number}")
                if space.f_blocks and not space.f_bavail:
                    found.append(_row("file_system", hidden(path), number, space.f_blocks * space.f_frsize))
    return found[:MOST]


def _row(kind: str, path: str, fd: int, value: int) -> dict[str, Any]:
    return {"kind": kind, "path": path[-_LONGEST:], "fd": fd, "value": value}


def _soft(text: str) -> dict[str, int | None]:
    """
    >>> _soft("Max file size             6291456              unlimited            bytes")
    {'Max file size': 6291456}
    """
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        for name in (_FILE_SIZE, _OPEN_FILES):
            if line.startswith(name) and (value := line[len(name) :].split()[:1]):
                found[name] = int(value[0]) if value[0].isdigit() else None
    return found


def reached_of(rows: Iterable[Any]) -> Iterator[Reached]:
    for row in list(rows)[:MOST]:
        yield from_mapping(Reached, mapping(row))
