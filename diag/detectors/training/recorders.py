"""Flight Recorders of all ranks as one reading, and which rank comes last to the collectives in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from diag.model import Evidence
from diag.model.observations import CallHistory, FlightRecorder
from diag.state.arrivals import Arrivals, Latecomer, arrivals
from diag.text.units import format_seconds

_ONE_ROUND_SECONDS = 20.0
_MOST_RANKS = 256  # ours: comparing all calls of more takes seconds
_FRESH_SECONDS = 300.0


_Fact = TypeVar("_Fact", FlightRecorder, CallHistory)


class RecorderRounds(Generic[_Fact]):
    """Keeps the newest recorder of each rank: they are asked one after the other."""

    def __init__(self) -> None:
        self._recorders: dict[int, tuple[float, _Fact]] = {}
        self._done = 0.0

    def observe(self, at: float, fact: _Fact, ranks: int) -> Mapping[int, _Fact] | None:
        """All of them, with the last answer of a round of so many ranks."""
        if fact.rank is None or (fact.rank not in self._recorders and len(self._recorders) >= _MOST_RANKS):
            return None
        self._recorders[fact.rank] = (at, fact)
        oldest = min(seen for seen, _ in self._recorders.values())
        if not 1 < ranks <= len(self._recorders) or at - oldest > _ONE_ROUND_SECONDS or oldest <= self._done:
            return None
        self._done = at
        return {rank: recorder for rank, (_, recorder) in self._recorders.items()}

    def start_over(self) -> None:
        self._recorders.clear()


class Latecomers:
    """Of one host only: the times are by its clock."""

    listens = (FlightRecorder,)

    def __init__(self) -> None:
        self._rounds: RecorderRounds[FlightRecorder] = RecorderRounds()
        self._read: tuple[float, Arrivals | None] = (0.0, None)

    def observe(self, at: float, fact: FlightRecorder, ranks: int) -> None:
        recorders = self._rounds.observe(at, fact, ranks)
        if recorders is not None:
            self._read = (at, arrivals(recorders))

    def start_over(self) -> None:
        self._rounds.start_over()
        self._read = (0.0, None)

    def last(self, now: float) -> tuple[Latecomer, Arrivals] | None:
        """Who came last to nearly all calls of the newest reading."""
        at, found = self._read
        first = found.straggler if found is not None and now - at <= _FRESH_SECONDS else None
        return (first, found) if first is not None and found is not None else None

    def evidence(self, latecomer: Latecomer) -> Evidence:
        return Evidence("flight_recorder", f"came {in_words(latecomer)}", self._read[0], latecomer.rank)


def in_words(latecomer: Latecomer) -> str:
    return (
        f"last to {latecomer.times} of {latecomer.of} collectives, {format_seconds(latecomer.seconds)} after the first "
        "(median)"
    )
