"""Which rank comes last to the collectives, reading of the Flight Recorders after reading."""

from __future__ import annotations

from diag.model import Evidence
from diag.model.observations import FlightRecorder
from diag.state.arrivals import Arrivals, Latecomer, arrivals
from diag.text.units import format_seconds

_ONE_READING_SECONDS = 20.0  # the ranks are asked one after the other
_FRESH_SECONDS = 300.0


class Latecomers:
    """Keeps the newest recorder of each rank. Of one host only: the times are by its clock."""

    listens = (FlightRecorder,)

    def __init__(self) -> None:
        self._recorders: dict[int, tuple[float, FlightRecorder]] = {}
        self._read: tuple[float, Arrivals | None] = (0.0, None)

    def observe(self, at: float, fact: FlightRecorder) -> None:
        if fact.rank is None:
            return
        self._recorders[fact.rank] = (at, fact)
        oldest = min(seen for seen, _ in self._recorders.values())
        # once for each round of answers, not for each answer
        if len(self._recorders) > 1 and at - oldest <= _ONE_READING_SECONDS and oldest > self._read[0]:
            found = arrivals({rank: recorder for rank, (_, recorder) in self._recorders.items()})
            self._read = (at, found)

    def start_over(self) -> None:
        self._recorders.clear()
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
