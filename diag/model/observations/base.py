"""What every fact is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diag.model import Record

__all__ = ["Observation", "Parser"]


@dataclass(frozen=True, slots=True)
class Observation:
    """Base of all: the rank it is about, or None for the node or the job."""

    rank: int | None


# Of one source: a record into the facts in it. Pure; what it should have understood and did not is `Unparsed`.
Parser = Callable[[Record], Iterator[Observation]]
