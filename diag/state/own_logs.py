"""What ranks wrote last into log files of their own."""

from __future__ import annotations

from collections.abc import Iterator

from diag.model.observations import LastLines, LinesWritten
from diag.state.reducer import AttemptBegan, Reducer, takes

_MOST = 1024  # files


class OwnLogs(Reducer):
    def __init__(self) -> None:
        self._last: dict[tuple[int, str], LinesWritten | LastLines] = {}

    def of_rank(self, rank: int) -> Iterator[LinesWritten | LastLines]:
        return (fact for (number, _), fact in self._last.items() if number == rank)

    @takes(LinesWritten)
    def _written(self, at: float, fact: LinesWritten) -> None:
        self._keep(fact)

    @takes(LastLines)
    def _found(self, at: float, fact: LastLines) -> None:
        self._keep(fact)

    def _keep(self, fact: LinesWritten | LastLines) -> None:
        if fact.rank is not None and (len(self._last) < _MOST or (fact.rank, fact.file) in self._last):
            self._last[fact.rank, fact.file] = fact

    @takes(AttemptBegan)
    def _began_anew(self, at: float, fact: AttemptBegan) -> None:
        self._last.clear()
