"""What every fact is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Observation",
]


@dataclass(frozen=True, slots=True)
class Observation:
    """Base of all: the rank it is about, or None for the node or the job."""

    rank: int | None
