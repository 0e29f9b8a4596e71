"""What the command should need, computed once when it starts (`diag.preflight.estimate`): the record and its parser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diag.model import Record
from diag.model.observations import MemoryEstimated, MemoryTerm, Observation
from diag.model.observations.memory import PublishedRun, StepWork
from diag.sources.payload import from_mapping, guarded

SOURCE = "estimate"

_MOST_TERMS = 64
_MOST_RUNS = 8


def record(payload: Mapping[str, Any], host: str) -> Record:
    """`payload` is `Estimate.observation()`."""
    return Record(SOURCE, dict(payload), host=host)


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    terms = {name: _terms(record.payload[name]) for name in ("gpu", "host", "save")}
    yield from_mapping(
        MemoryEstimated, record.payload, rank=None, speed=_speed(record.payload.get("speed")), **terms
    )


def _speed(found: Any) -> StepWork | None:
    """None in captures of before it was reckoned."""
    if not isinstance(found, Mapping):
        return None
    runs = found.get("published")
    runs = runs[:_MOST_RUNS] if isinstance(runs, list) else []
    work = from_mapping(StepWork, found, published=tuple(from_mapping(PublishedRun, run) for run in runs))
    return work if work.step_tokens > 0 and work.ranks > 0 else None


def _terms(items: Any) -> tuple[MemoryTerm, ...]:
    if not isinstance(items, list) or len(items) > _MOST_TERMS:
        raise ValueError("no list of terms")
    absent = {"formula": "", "source": ""}
    return tuple(
        from_mapping(MemoryTerm, {**absent, **item}, size_bytes=int(item["bytes"])) for item in items
    )
