"""What the command should need, computed once when it starts (`diag.preflight.estimate`): the record and its parser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diag.model import Record
from diag.model.observations import MemoryEstimated, MemoryTerm, Observation, Unparsed

SOURCE = "estimate"

_MOST_TERMS = 64


def record(payload: Mapping[str, Any], host: str) -> Record:
    """`payload` is `Estimate.observation()`."""
    return Record(SOURCE, dict(payload), host=host)


def parse(record: Record) -> Iterator[Observation]:
    payload = record.payload
    try:
        on_disk = payload.get("checkpoint_bytes")
        yield MemoryEstimated(
            None,
            gpu=_terms(payload["gpu"]),
            host=_terms(payload["host"]),
            save=_terms(payload["save"]),
            checkpoint_bytes=None if on_disk is None else int(on_disk),
            basis=str(payload.get("basis", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        yield Unparsed(record.rank, SOURCE, f"{type(error).__name__}: {error}", repr(payload)[:200])


def _terms(items: Sequence[Mapping[str, Any]]) -> tuple[MemoryTerm, ...]:
    if not isinstance(items, list) or len(items) > _MOST_TERMS:
        raise ValueError("no list of terms")
    return tuple(
        MemoryTerm(
            str(item["name"]), int(item["bytes"]), str(item.get("formula", "")), str(item.get("source", ""))
        )
        for item in items
    )
