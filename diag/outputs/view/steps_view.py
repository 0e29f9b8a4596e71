"""How long steps take, where their time goes and who comes last, as the JSON and the lines of a dump. The
caller holds the engine's lock."""

from __future__ import annotations

from collections import Counter
from typing import Any

from diag.engine.engine import Engine
from diag.outputs.view.speed import speed_lines
from diag.state.arrivals import arrivals
from diag.state.residence import Residence
from diag.state.speed import speed_json
from diag.state.steptimes import steps_sentence
from diag.text.units import format_ratio, format_seconds

_FRESH_SECONDS = 120.0
_MOST_LATECOMERS = 16
_LEAST_SHARE = 0.01


def steps_json(engine: Engine) -> dict[str, Any]:
    """What the report has under `job.steps`, with `time_shares` of all ranks and `text` for people."""
    pace = engine.job.progress.steps.to_json()
    counts = list(engine.job.residence.counts().values())
    lines = [] if pace is None else [f"steps: {steps_sentence(pace)}"]
    speed = speed_json(engine.job)
    lines += speed_lines(speed) if speed is not None else []
    if counts:
        parts = [
            f"{kind} {format_ratio(share)}"
            for kind, share in Residence.shares(counts).items()
            if share >= _LEAST_SHARE
        ]
        lines.append(f"time of a step, from {_samples(counts)} samples of main threads: {', '.join(parts)}")
    return {"steps": pace, "time_shares": _shares(counts) if counts else None, "text": lines}


def shares_json(engine: Engine) -> dict[int, dict[str, float]]:
    """By rank: {"samples": n, "data": 0.1, ...}; none before the first sample of a step."""
    return {rank: _shares([counts]) for rank, counts in engine.job.residence.counts().items()}


def _shares(counts: list[Counter[str]]) -> dict[str, float]:
    return {
        "samples": _samples(counts),
        **{kind: round(share, 4) for kind, share in Residence.shares(counts).items()},
    }


def _samples(counts: list[Counter[str]]) -> int:
    return sum(sum(each.values()) for each in counts)


def arrivals_json(engine: Engine) -> dict[str, Any] | None:
    """Null without fresh recorders of two ranks of one host."""
    job = engine.job
    recorders = {
        rank.rank: rank.recorder for rank in job.alive_ranks()
        if rank.recorder is not None and engine.now - rank.asked_at <= _FRESH_SECONDS
    }  # fmt: skip
    found = arrivals(recorders) if len({job.ranks[rank].placement.host for rank in recorders}) == 1 else None
    if found is None:
        return None
    first = found.last[0]
    late = format_seconds(first.seconds)
    text = (
        f"arrival at {found.calls} collectives of {len(found.ranks)} ranks: rank {first.rank} arrived last at {first.times} of "
        f"them, {late} after the first (median, by the Flight Recorder)"
    )
    return {
        "calls": found.calls, "ranks": list(found.ranks), "text": text,
        "last": [{"rank": each.rank, "times": each.times, "median_seconds": round(each.seconds, 6)}
                 for each in found.last[:_MOST_LATECOMERS]],
    }  # fmt: skip
