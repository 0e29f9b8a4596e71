"""Flight Recorders of all ranks as one reading: they are asked one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from diag.model.observations import FlightRecorder

_ONE_ROUND_SECONDS = 20.0
_MOST_RANKS = 256  # ours: comparing all calls of more takes seconds


class RecorderRounds:
    """Keeps the newest recorder of each rank."""

    def __init__(self) -> None:
        self._recorders: dict[int, tuple[float, FlightRecorder]] = {}
        self._done = 0.0

    def observe(self, at: float, fact: FlightRecorder, ranks: int) -> Mapping[int, FlightRecorder] | None:
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
