"""What the program's own text says of the lines at which its ranks were found, and their variables there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diag.model.observations import (
    Block,
    Frame,
    FrameVariables,
    ProgramPlace,
    ProgramRead,
    Statement,
    VariablesRead,
)
from diag.state.reducer import AttemptBegan, Reducer, takes

_MOST = 2048
_OUTWARDS = 3  # frames in which a block is sought
_Function = tuple[int, str, str]


class Program(Reducer):
    def __init__(self) -> None:
        self._places: dict[tuple[str, int, str], ProgramPlace] = {}
        self._statements: dict[tuple[str, int], Statement] = {}
        self._variables: dict[tuple[int, int], VariablesRead] = {}  # by rank and pid
        self._first: dict[tuple[int, int], dict[_Function, FrameVariables]] = {}

    def at(self, frame: Frame | None) -> ProgramPlace | None:
        """None where its text was not read, or is not what the process runs."""
        return None if frame is None else self._places.get((frame.file, frame.line, frame.function))

    def around(self, frames: Sequence[Frame]) -> Iterator[tuple[ProgramPlace, Block]]:
        """The blocks around the innermost of these lines, the nearest first."""
        places = (place for frame in reversed(frames[-_OUTWARDS:]) if (place := self.at(frame)) is not None)
        return ((place, block) for place in places for block in place.around)

    def statements(self, kind: str) -> list[Statement]:
        """In the order of files and lines."""
        return [one for _, one in sorted(self._statements.items()) if one.kind == kind]

    def variables(self, rank: int, pid: int) -> VariablesRead | None:
        """Of a process of this rank, as last read. None where they were not."""
        return self._variables.get((rank, pid))

    def first_variables(self, rank: int, pid: int, frame: FrameVariables) -> FrameVariables | None:
        """Of this function, as first read since it has been in it at each reading."""
        return self._first.get((rank, pid), {}).get(_function(frame))

    @takes(VariablesRead)
    def _read_variables(self, at: float, fact: VariablesRead) -> None:
        if fact.rank is not None and len(self._variables) < _MOST:
            place = fact.rank, fact.pid
            first = self._first.get(place, {})
            self._first[place] = {
                _function(frame): first.get(_function(frame), frame)
                for frame in fact.frames
                if not frame.called
            }
            self._variables[place] = fact

    @takes(ProgramRead)
    def _read(self, at: float, fact: ProgramRead) -> None:
        for place in fact.places:
            if len(self._places) < _MOST:
                self._places[place.file, place.line, place.function] = place
        for one in fact.statements:
            if len(self._statements) < _MOST:
                self._statements[one.file, one.line] = one

    @takes(AttemptBegan)
    def _began_anew(self, at: float, fact: AttemptBegan) -> None:
        self._places.clear()  # it may have been mended in between
        self._statements.clear()
        self._variables.clear()
        self._first.clear()


def _function(frame: FrameVariables) -> _Function:
    return frame.thread_id, frame.file, frame.function
