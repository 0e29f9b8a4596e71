"""The `diag.report/1` document: the one account of a job that terminal, page, `diag top`, dumps and scripts
are given.

Reads the engine and judges nothing. Its words are made in `outputs.sentence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diag.engine.engine import Engine
from diag.model import STANDING, Finding, NotChecked
from diag.outputs.lasting import lasting
from diag.outputs.view.classes import StackClass
from diag.outputs.view.next_step import next_command
from diag.outputs.view.sentence import retell
from diag.state.savefacts import save_json

__all__ = ["report"]

_MOST_OVER = 100  # told again with each step of the job


def report(engine: Engine, classes: Sequence[StackClass] | None = None) -> dict[str, Any]:
    """`findings` are the open ones; when no more records come, those that are over follow, each with its
    `resolved_at`. `past` always has those that are over. `classes`: the merged stacks, where the caller has
    made them already.

    The engine's lock is held by the caller.
    """
    job = engine.job
    ended = job.returncode is not None
    open_now = [
        {
            **_told(engine, finding, past=ended),
            "opened_at": engine.opened_at(finding),
            **({"open_at_end": True} if ended and finding.id in STANDING else {}),
        }
        for finding in engine.active()
    ]
    over = engine.over()
    past = [
        {
            **_told(engine, one.finding, past=True),
            "opened_at": one.opened_at,
            "resolved_at": one.resolved_at,
            **({"moved_again": list(one.moved_again)} if one.moved_again else {}),
        }
        for one in over[:_MOST_OVER]
    ]
    command, reason = next_command(engine, classes)
    document: dict[str, Any] = {
        "schema": "diag.report/1",
        "job": {
            "state": engine.job_word(),
            "phase": job.phase,
            "world_size": job.world_size,
            "ranks_seen": job.ranks_seen,
            "iteration": job.iteration,
            "total_iterations": job.total_iterations or None,
            "returncode": job.returncode,
            "ended_at": job.ended_at if ended else None,
            "steps": job.steps.to_json(),
            "save": save_json(job, engine.now),
            "at": engine.now,
        },
        "findings": [*open_now, *(past if engine.finished else ())],
        "past": past,
        **({"past_left_out": len(over) - len(past)} if len(over) > len(past) else {}),
        "not_checked": [_unchecked(line, ended=ended) for line in engine.not_checked()],
        "next_command": command,
        "next_reason": reason,
    }
    if engine.log is not None:
        document["log"] = engine.log
    return retell(document)


def _unchecked(line: NotChecked, *, ended: bool) -> dict[str, Any]:
    told = line.to_json()
    return {**told, "remedy": lasting(told["remedy"])} if ended else told


def _told(engine: Engine, finding: Finding, *, past: bool) -> dict[str, Any]:
    """`past`: its processes are gone, or it is over."""
    told = finding.to_json()
    if past:
        told["advice"] = lasting(told["advice"])
    for item in told["evidence"]:
        place = engine.place_of(item["excerpt"])
        if place:
            item["where"] = place
    return told
