"""The `diag.report/1` document: the one account of a job that terminal, page, `diag top`, dumps and scripts
are given.

Reads the engine and judges nothing. Its sentence is made in `outputs.view.sentence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diag.engine.engine import Engine
from diag.model import Finding
from diag.outputs.advice import next_command
from diag.outputs.view.classes import StackClass
from diag.outputs.view.sentence import retell
from diag.state.phases import BEFORE_TRAINING
from diag.state.savefacts import save_json
from diag.state.speed import speed_json
from diag.state.view import JobView
from diag.text.units import EARLIEST_DATED

_JUDGED_SECONDS = 1.0  # behind the last line of a log, to what follows from it
_LONGEST_LINE = 200
_MOST_OVER = 100  # sent again with each step of the job


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
            **_finding(engine, finding, past=ended, told_at=engine.opened_at(finding)),
            "opened_at": engine.opened_at(finding),
            **({"open_at_end": True} if ended and finding.id in engine.precedence.stands_still else {}),
        }
        for finding in engine.active()
    ]
    over = engine.over()
    past = [
        {
            **_finding(engine, one.finding, past=True, told_at=one.opened_at),
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
            "state": job_status(engine),
            "phase": job.phases.shown(engine.now),
            "world_size": job.world_size,
            "ranks_seen": len(job.ranks),
            "iteration": job.iteration,
            **({"step_words": job.progress.where} if job.progress.where else {}),
            "total_iterations": job.progress.total_iterations or None,
            "returncode": job.returncode,
            "ended_at": _ended_at(job) if ended else None,
            "steps": job.progress.steps.to_json(),
            **({"speed": speed} if (speed := speed_json(job)) is not None else {}),
            "save": save_json(job, engine.now),
            "at": engine.now,
        },
        "findings": [*open_now, *(past if engine.finished else ())],
        "past": past,
        **({"past_left_out": len(over) - len(past)} if len(over) > len(past) else {}),
        "not_checked": [line.to_json(over=ended) for line in engine.not_checked()],
        "next_command": command,
        "next_reason": reason,
        **job.acts.to_json(),
    }
    if job.log.ended is not None:
        document["log"] = _log(job, named=bool(open_now))
    return retell(document)


def job_status(engine: Engine) -> str:
    """One word for the job: starting, running, checkpointing, held-up, hung, dead, finished, failed or unknown."""
    job = engine.job
    if job.returncode is not None:
        return "finished" if job.returncode == 0 else "failed"
    open_now = {finding.id for finding in engine.active() if finding.severity.counts}
    if "hang" in open_now:
        return "hung"
    if "held-up" in open_now:
        return "held-up"
    if any(rank.failed for rank in job.ranks.values()):
        return "dead"
    if job.iteration is None and job.phase == "launch" and not job.run.argv and not job.cluster.nodes:
        # Where no more comes, no start of a job was watched, and nothing in the evidence shows how far one is.
        return "unknown" if engine.finished else "starting"
    unseen = not job.ranks and job.iteration is None
    early = job.phase in BEFORE_TRAINING and not job.phases.has_begun(engine.now)
    if unseen or early:
        watched = job.run.argv or job.cluster.nodes
        shown = job.phases.shown(engine.now) in (*BEFORE_TRAINING, "first_step")
        return "starting" if watched or shown or not engine.finished else "unknown"
    return "checkpointing" if job.phase == "ckpt_save" else "running"


def _ended_at(job: JobView) -> float | None:
    """Of logs not long after their last line: what follows from them is judged later."""
    last, ended = None if job.log.ended is None else job.log.ended.ended, job.run.ended_at
    return last if last is not None and ended is not None and ended - last > _JUDGED_SECONDS else ended


def _log(job: JobView, *, named: bool) -> dict[str, Any]:
    """What the logs are that all of this was read from. The last line, where neither it nor a finding (`named`) shows the
    job's end."""
    assert job.log.ended is not None
    logs, before = job.log.ended, job.log.before
    described: dict[str, Any] = {
        "files": list(logs.files), "lines": job.log.lines, "launcher": logs.launcher or None,
        "began": _dated(logs.began), "ended": _dated(logs.ended),
    }  # fmt: skip
    if before is not None:
        described["earlier_attempts"] = {
            "count": before.earlier, "lines": before.lines, "ended_with": before.ended_with
        }  # fmt: skip
    last = next((line for line in reversed(job.log.tail) if line.strip()), "")
    if last and job.returncode is None and not named:
        described["last_line"] = last.strip()[:_LONGEST_LINE]
    return described


def _dated(at: float | None) -> float | None:
    """None for a time of lines without any date, which only counts."""
    return None if at is None or at < EARLIEST_DATED else at


def _finding(engine: Engine, finding: Finding, *, past: bool, told_at: float) -> dict[str, Any]:
    """`past`: its processes are gone, or it is over."""
    row = finding.to_json(over=past)
    if (kept := engine.job.run.evidence_of(finding.key, told_at)) is not None:
        row["bundle"] = kept.path
    for item in row["evidence"]:
        place = engine.place_of(item["excerpt"])
        if place:
            item["where"] = place
    return row
