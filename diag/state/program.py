"""What the program's own text says of the lines at which its ranks were found, and their variables there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from diag.model.observations import (
    Block,
    Frame,
    FrameVariables,
    ProgramPlace,
    ProgramRead,
    StarterSeen,
    Statement,
    VariablesRead,
)
from diag.state.reducer import AttemptBegan, Reducer, takes

_MOST, _MOST_STOPPERS = 2048, 16
_OUTWARDS = 3  # frames in which a block is sought
_Function = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Steady:
    """Variables of a function that had one value at each of so many readings, since the first of them."""

    since: float
    at: float  # the last
    readings: int
    values: Mapping[str, str]

    def read_again(self, at: float, values: Mapping[str, str]) -> Steady:
        kept = {name: text for name, text in self.values.items() if values.get(name) == text}
        return Steady(self.since, at, self.readings + 1, kept)


class Program(Reducer):
    def __init__(self) -> None:
        self._steady: dict[tuple[int, int], dict[_Function, Steady]] = {}
        self._places: dict[tuple[str, int, str], ProgramPlace] = {}
        self._statements: dict[tuple[str, int], Statement] = {}
        self._stoppers: dict[int, ProgramRead] = {}
        self._starter: StarterSeen | None = None
        self._variables: dict[tuple[int, int], VariablesRead] = {}  # by rank and pid
        self._first: dict[tuple[int, int], dict[_Function, FrameVariables]] = {}

    def at(self, frame: Frame | None) -> ProgramPlace | None:
        """None where its text was not read, or is not what the process runs."""
        return None if frame is None else self._places.get((frame.file, frame.line, frame.function))

    def around(self, frames: Sequence[Frame]) -> Iterator[tuple[ProgramPlace, Block]]:
        """The blocks around the innermost of these lines, the nearest first."""
        places = (place for frame in reversed(frames[-_OUTWARDS:]) if (place := self.at(frame)) is not None)
        return ((place, block) for place in places for block in place.inside)

    def statements(self, kind: str) -> list[Statement]:
        """In the order of files and lines."""
        return [one for _, one in sorted(self._statements.items()) if one.kind == kind]

    @property
    def stoppers(self) -> tuple[ProgramRead, ...]:
        """Processes beside the ranks whose scripts stop others."""
        return tuple(self._stoppers.values())

    def variables(self, rank: int, pid: int) -> VariablesRead | None:
        """Of a process of this rank, as last read. None where they were not."""
        return self._variables.get((rank, pid))

    def first_variables(self, rank: int, pid: int, frame: FrameVariables) -> FrameVariables | None:
        """Of this function, each as first read since it has been in it at each reading: what changes fast is not read
        each time."""
        return self._first.get((rank, pid), {}).get(_function(frame))

    def steady(self, rank: int, pid: int, frame: FrameVariables) -> Steady | None:
        """Of this function, since it has been in it at each reading."""
        return self._steady.get((rank, pid), {}).get(_function(frame))

    @property
    def starter(self) -> StarterSeen | None:
        """What has started the ranks of this machine, where some are missing."""
        return self._starter

    @takes(StarterSeen)
    def _started_by(self, at: float, fact: StarterSeen) -> None:
        self._starter = fact

    @takes(VariablesRead)
    def _read_variables(self, at: float, fact: VariablesRead) -> None:
        if fact.rank is not None and len(self._variables) < _MOST:
            place = fact.rank, fact.pid
            first = self._first.get(place, {})
            self._first[place] = {
                _function(frame): _with_new(first.get(_function(frame)), frame)
                for frame in fact.frames
                if not frame.called
            }
            self._variables[place] = fact
            before = self._steady.get(place, {})
            self._steady[place] = {}
            for frame in fact.frames:
                if not frame.called:
                    values = {one.name: one.text for one in frame.variables}
                    known = before.get(_function(frame))
                    now = known.read_again(at, values) if known is not None else Steady(at, at, 1, values)
                    self._steady[place][_function(frame)] = now

    @takes(ProgramRead)
    def _read(self, at: float, fact: ProgramRead) -> None:
        if fact.command:
            if len(self._stoppers) < _MOST_STOPPERS:
                self._stoppers[fact.pid] = fact
            return
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
        self._stoppers.clear()
        self._starter = None
        self._variables.clear()
        self._first.clear()
        self._steady.clear()


def _with_new(first: FrameVariables | None, frame: FrameVariables) -> FrameVariables:
    if first is None:
        return frame
    known = {one.name for one in first.variables}
    new = tuple(one for one in frame.variables if one.name not in known)
    return replace(first, variables=(*first.variables, *new)) if new else first


def _function(frame: FrameVariables) -> _Function:
    return frame.thread_id, frame.file, frame.function
