"""Checks before the run, one a file; a new one is a file and a line here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diag.preflight import eyes, gpus, machine
from diag.preflight.line import Line

__all__ = ["CHECKS", "Line", "document", "text"]

CHECKS: tuple[Callable[[Sequence[str]], Iterable[Line]], ...] = (
    machine.check_shared_memory,
    machine.check_open_files,
    machine.check_locked_memory,
    machine.check_host_memory,
    machine.check_disk,
    eyes.check_stacks,
    gpus.check_gpus,
)


def document(lines: Sequence[Line]) -> dict[str, Any]:
    """`diag.report/1`: problems as findings, what could not be looked at under not_checked."""
    now = time.time()
    return {
        "schema": "diag.report/1",
        "job": {"state": "not started", "phase": "preflight", "world_size": 0, "ranks_seen": 0},
        "findings": [
            {
                "id": line.id, "subject": "node", "class": "", "severity": line.level, "confidence": "high", "ranks": [],
                "waiting_ranks": [], "since": now, "summary": line.said, "cause": "preflight", "advice": line.remedy,
                "evidence": [{"rank": None, "at": now, "kind": "preflight", "excerpt": line.said}],
            }
            for line in lines
            if line.status == "problem" or (line.status == "note" and line.id)
        ],
        "not_checked": [
            {"what": line.what, "reason": line.said, "remedy": line.remedy} for line in lines if line.status == "not checked"
        ],
        "checks": [{"what": line.what, "status": line.status, "said": line.said, "remedy": line.remedy} for line in lines],
    }


def text(lines: Sequence[Line], *, colour: bool) -> str:
    marks = {"ok": "\033[32m", "problem": "\033[31m", "not checked": "\033[33m", "note": "\033[36m"}
    rows = []
    for line in lines:
        status = f"{line.status:<11}"
        rows.append((marks[line.status] + status + "\033[0m" if colour else status) + f" {line.what}: {line.said}")
        if line.remedy:
            rows.append(f"{'':<11}   {line.remedy}")
    return "\n".join(rows)
