"""Checks before the run, one a file; a new one is a file and a line here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from diag.preflight import gpus, launch, leftovers, machine, storage
from diag.preflight.launch_facts import LaunchFacts, launch_facts
from diag.preflight.line import Line

__all__ = ["CHECKS", "Line", "document", "sorted_lines", "summary", "text"]

CHECKS: tuple[Callable[[LaunchFacts], Iterable[Line]], ...] = (
    machine.check_shared_memory,
    machine.check_open_files,
    machine.check_locked_memory,
    machine.check_host_memory,
    machine.check_processes,
    machine.check_ulimits,
    storage.check_disk,
    storage.check_caches,
    machine.check_stacks,
    gpus.check_gpus,
    gpus.check_npus,
    leftovers.check_leftovers,
    leftovers.check_shm_files,
    launch.check_launch,
)


def check_machine(command: Sequence[str]) -> Iterator[Line]:
    """All of them on `command`, read once: no line can speak of another job than the next."""
    facts = launch_facts(command, os.environ, gpus.uuids_here(), gpus.npus_here())
    for check in CHECKS:
        yield from check(facts)


def document(lines: Sequence[Line]) -> dict[str, Any]:
    """`diag.report/1`: problems as findings, what could not be checked under not_checked."""
    now = time.time()
    return {
        "schema": "diag.report/1",
        "job": {"state": "not started", "phase": "preflight", "world_size": 0, "ranks_seen": 0},
        "findings": [
            {
                "id": line.id,
                "subject": "node",
                "class": "",
                "severity": line.level,
                "confidence": "high",
                "ranks": [],
                "waiting_ranks": [],
                "since": now,
                "summary": line.said,
                "cause": "preflight",
                "advice": line.remedy,
                "evidence": [{"rank": None, "at": now, "kind": "preflight", "excerpt": line.said}],
            }
            for line in lines
            if line.status == "problem" or (line.status == "note" and line.id)
        ],
        "not_checked": [
            {"what": line.what, "reason": line.said, "remedy": line.remedy}
            for line in lines
            if line.status == "not checked"
        ],
        "checks": [
            {"what": line.what, "status": line.status, "said": line.said, "remedy": line.remedy}
            for line in lines
        ],
    }


_ORDER = ("problem", "not checked", "note", "ok")


def sorted_lines(lines: Iterable[Line]) -> list[Line]:
    """As they are printed: what has to be done first, what is well last; else in the order of the checks.

    >>> [line.what for line in sorted_lines([Line("disk", "ok", ""), Line("GPUs", "note", ""), Line("launch", "problem", "")])]
    ['launch', 'GPUs', 'disk']
    """
    return sorted(lines, key=lambda line: (_ORDER.index(line.status), line.level != "critical"))


def text(lines: Sequence[Line], *, colour: bool) -> str:
    marks = {"ok": "\033[32m", "problem": "\033[31m", "not checked": "\033[33m", "note": "\033[36m"}
    rows = []
    for line in lines:
        status = f"{line.status:<11}"
        shown = f"{marks[line.status]}{status}\033[0m" if colour else status
        rows.append(f"{shown} {line.what}: {line.said}")
        if line.remedy:
            rows += [f"{'':<11}   {row}" for row in line.remedy.split("\n")]
    return "\n".join(rows)


def summary(lines: Sequence[Line]) -> str:
    """The last line of the text, for who sees only the end of it.

    >>> summary([Line("launch", "problem", "4 ranks, 2 GPUs"), Line("disk", "ok", "free"), Line("GPUs", "not checked", "")])
    '1 problem: launch; 1 not checked: GPUs'
    """
    parts = [] if any(line.status == "problem" for line in lines) else ["no problem"]
    for status in ("problem", "not checked"):
        found = [line.what for line in lines if line.status == status]
        many = "s" if status == "problem" and len(found) > 1 else ""
        if found:
            parts.append(f"{len(found)} {status}{many}: {', '.join(dict.fromkeys(found))}")
    return "; ".join(parts)
