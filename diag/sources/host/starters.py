"""The process that has started the ranks of a machine, and how many page faults the programs had that it started and that have
ended: where these are fewer than Python has for its start, a rank that has not appeared was not among them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path

from diag.launch.launchers.secrets import without_secrets
from diag.model import Payload
from diag.sources.host.process_tree import PROC, Tree, is_python, read_argv, read_process, stat_fields

_LONGEST = 120
_DEEPEST = 8
_CHILDREN_FAULTS = 8  # cminflt, from the state on; proc_pid_stat(5)
_PAGE_BYTES = 4096  # of larger pages (64 KiB on some aarch64) a start has a fraction of the faults, which were not counted there


def read(ranks: Mapping[int, int], proc: Path = PROC) -> Payload | None:
    """Of these ranks' pids: {"pid", and what `StarterSeen` has} of the nearest process that all of them are below; None
    where that is diag itself or the first process, or not to be seen, and where pages are not of 4 KiB."""
    if os.sysconf("SC_PAGE_SIZE") != _PAGE_BYTES:
        return None
    lines = [_above(pid, proc) for pid in ranks.values()]
    common = next((pid for pid in (lines[0] if lines else ()) if all(pid in line for line in lines)), 0)
    fields = stat_fields(common, proc) if common > 1 and common != os.getpid() else None
    if fields is None or len(fields) <= _CHILDREN_FAULTS:
        return None
    argv = read_argv(common, proc)
    if not argv:
        return None
    command = " ".join(map(without_secrets, (posixpath.basename(argv[0]), *argv[1:])))[:_LONGEST]
    alone = not _has_other_pythons(common, ranks, proc)
    faults = int(fields[_CHILDREN_FAULTS])
    return {"pid": common, "command": command, "ranks": sorted(ranks), "ended_faults": faults, "alone": alone}


def _has_other_pythons(starter: int, ranks: Mapping[int, int], proc: Path) -> bool:
    """Below the one that has started these ranks, besides them, what has started them, and what they have started: one may be a
    rank that was not known for one."""
    known = {*ranks.values()}
    between = {pid for rank in known for pid in _above(rank, proc)}
    for pid in Tree(starter, proc).scan(full=True):
        if pid not in known | between and is_python(pid, proc) and known.isdisjoint(_above(pid, proc)):
            return True
    return False


def _above(pid: int, proc: Path) -> list[int]:
    found: list[int] = []
    while len(found) < _DEEPEST and (process := read_process(pid, proc)) is not None and process.parent:
        pid = process.parent
        found.append(pid)
    return found
