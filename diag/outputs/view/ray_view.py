"""Ray's processes as a dump has them: who is a driver, an actor, a daemon, and where each is."""

from __future__ import annotations

from typing import Any

from diag.engine.engine import Engine
from diag.model import numbered
from diag.model.observations import RayProcess
from diag.state.ray import between_calls, place_of
from diag.state.stack_activity import format_frame
from diag.text.units import format_seconds

_SHOWN = 64
_TITLE = 80


def ray_json(engine: Engine) -> dict[str, Any]:
    """`session`, `processes` (daemons without a place), `pending`, and `text`: a line for each but daemons. Empty where the
    job does not use Ray."""
    job = engine.job
    seen = job.ray.seen
    if seen is None:
        return {}
    ranks = {one.placement.pid: one.rank for one in job.alive_ranks() if one.distributed}
    rows = [_row(one, ranks.get(one.pid), engine) for one in seen.processes]
    daemons = sum(row["kind"] == "daemon" for row in rows)
    text = [_line(row, engine.now) for row in rows if row["kind"] != "daemon"][:_SHOWN]
    if daemons:
        text.append(numbered(f"Ray: {daemons} [process|processes] of its own (raylet, GCS, agents)", daemons))
    pending = [
        {"group": one.group, "shape": [dict(each) for each in one.shape], "count": one.count}
        for one in seen.demands
    ]
    return {"at": job.ray.at, "session": seen.session, "processes": rows, "pending": pending, "text": text}


def _row(one: RayProcess, rank: int | None, engine: Engine) -> dict[str, Any]:
    own, inner = place_of(one)
    frame = own or inner
    does = "" if one.kind == "daemon" or frame is None else format_frame(frame, engine.job.run.cwd)
    return {
        "pid": one.pid,
        "kind": one.kind,
        "title": one.title,
        "task": one.task,
        "rank": rank,
        "idle": one.kind == "worker" and between_calls(one),
        "where": does,
        "since": engine.job.ray.since(one.pid),
    }


def _line(row: dict[str, Any], now: float) -> str:
    who = f"rank {row['rank']}, " if row["rank"] is not None else ""
    name = row["task"] or (row["title"][:_TITLE] if row["kind"] != "worker" else "no task")
    where = (
        "between two calls" if row["idle"] else f"in {row['where']}" if row["where"] else "not known where"
    )
    return f"Ray {row['kind']} {name} ({who}pid {row['pid']}): {where}, for {format_seconds(max(0.0, now - row['since']))}"
