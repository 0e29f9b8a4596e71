"""Who else runs on the cores that a rank may use: looked for where the rank is ready and gets no core."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from diag.launch.launchers.secrets import redacted
from diag.sources.host.process_tree import read_argv, read_raw, split_stat
from diag.sources.payload import numbers_in, rows, sequence, whole

_STARVED = 0.3  # of the time ready and without a core
_LEAST_SECONDS = 1.0  # between two readings that are compared
_AGAIN_SECONDS = 30.0  # all processes of the machine are read for it
_MOST = 8
_COMMAND = 200


class Starvation:
    """Whether the thread whose schedstat this is has waited for a core lately, and it is time to look for whom."""

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None
        self._looked_at = -_AGAIN_SECONDS

    def look(self, schedstat: bytes, now: float) -> bool:
        fields = schedstat.split()
        if len(fields) != 3 or not fields[1].isdigit():
            return False
        delay, before = int(fields[1]), self._before
        if before is not None and now - before[0] < _LEAST_SECONDS:
            return False
        self._before = (now, delay)
        if before is None or now - self._looked_at < _AGAIN_SECONDS:
            return False
        if delay - before[1] < _STARVED * 1e9 * (now - before[0]):
            return False
        self._looked_at = now
        return True


def running(root: Path, cores: str, own: Collection[int]) -> list[list[Any]]:
    """[pid, command] of processes that are ready or run on one of these cores now, those that have used most CPU
    first."""
    wanted = {*numbers_in(cores)}
    found: list[tuple[int, int, str]] = []
    try:
        names = os.listdir(root)
    except OSError:
        return []
    for name in names:
        if not name.isdigit() or int(name) in own:
            continue
        raw = read_raw(f"{root}/{name}/stat")
        try:
            _, comm, fields = split_stat((raw or b"").decode(errors="replace"))
            if fields[0] == "R" and int(fields[36]) in wanted:  # field 39, processor
                found.append((int(fields[11]) + int(fields[12]), int(name), comm))
        except (ValueError, IndexError):
            continue
    found.sort(reverse=True)
    # as they were started, without what looks like a secret
    commands = {
        pid: " ".join(redacted(read_argv(pid, root)))[:_COMMAND].strip() for _, pid, _ in found[:_MOST]
    }
    return [[pid, commands[pid] or comm] for _, pid, comm in found[:_MOST]]


def parse(value: object) -> tuple[tuple[int, str], ...]:
    pairs = [(whole(pid), text) for pid, text in rows(sequence(value)[:_MOST], object, str)]
    return tuple((pid, text[:_COMMAND]) for pid, text in pairs if pid is not None)
