"""Which rank comes last to the collectives, reading of the Flight Recorders after reading."""

from __future__ import annotations

from diag.detectors.training.recorder_rounds import RecorderRounds
from diag.model import Evidence
from diag.model.observations import FlightRecorder
from diag.state.arrivals import Arrivals, Latecomer, arrivals
from diag.text.units import format_seconds

_FRESH_SECONDS = 300.0


class Latecomers:
    """Of one host only: the times are by its clock."""

    listens = (FlightRecorder,)

    def __init__(self) -> None:
        self._rounds = RecorderRounds()
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
