"""What ranks, and processes that they wait for, wrote last into log files of their own."""

from __future__ import annotations

from collections.abc import Iterator

from diag.model.observations import LastLines, LinesWritten
from diag.state.reducer import AttemptBegan, Reducer, takes

_MOST = 1024  # files


class OwnLogs(Reducer):
    def __init__(self) -> None:
        self._last: dict[tuple[int, int, str], LinesWritten | LastLines] = {}

    def of_process(self, rank: int, pid: int = 0) -> Iterator[LinesWritten | LastLines]:
        """0: of the rank itself, else of a process that it waits for."""
        return (fact for (number, of, _), fact in self._last.items() if (number, of) == (rank, pid))

    @takes(LinesWritten)
    def _written(self, at: float, fact: LinesWritten) -> None:
        self._keep(fact)

    @takes(LastLines)
    def _found(self, at: float, fact: LastLines) -> None:
        self._keep(fact)

    def _keep(self, fact: LinesWritten | LastLines) -> None:
        if fact.rank is not None:
            place = fact.rank, fact.pid, fact.file
            if len(self._last) < _MOST or place in self._last:
                self._last[place] = fact

    @takes(AttemptBegan)
    def _began_anew(self, at: float, fact: AttemptBegan) -> None:
        self._last.clear()
