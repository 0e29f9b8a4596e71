"""What the program's own text says of the lines at which its ranks were found."""

from __future__ import annotations

from diag.model.observations import Frame, ProgramPlace, ProgramRead
from diag.state.reducer import AttemptBegan, Reducer, takes

_MOST = 2048


class Program(Reducer):
    def __init__(self) -> None:
        self._places: dict[tuple[str, int, str], ProgramPlace] = {}

    def at(self, frame: Frame | None) -> ProgramPlace | None:
        """None where its text was not read, or is not what the process runs."""
        return None if frame is None else self._places.get((frame.file, frame.line, frame.function))

    @takes(ProgramRead)
    def _read(self, at: float, fact: ProgramRead) -> None:
        for place in fact.places:
            if len(self._places) < _MOST:
                self._places[place.file, place.line, place.function] = place

    @takes(AttemptBegan)
    def _began_anew(self, at: float, fact: AttemptBegan) -> None:
        self._places.clear()  # it may have been mended in between
