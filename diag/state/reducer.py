"""How the job's state is put together: reducers that each own a part, and the events they send each other.

A reducer is the only one that writes its attributes. Its methods marked `takes` are called with the
observations and events they name, by the table that `JobState` builds. What several parts need to know (the
phase changed, another attempt began) is an event: whoever owns the fact sends it, whoever needs it takes it.
Events are taken at once, before the observation that caused them reaches the next reducer. Detectors may listen to
them too: they are handed those that an observation led to after the observation itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from diag.model.observations import RankFound, ThreadStack
from diag.model.observations.base import Event
from diag.state.stack_activity import Reading

Tell = Callable[[float, object], None]
_Method = TypeVar("_Method", bound=Callable[..., None])


def takes(*facts: type) -> Callable[[_Method], _Method]:
    """Marks the method of a reducer that takes in these observations or events."""

    def mark(method: _Method) -> _Method:
        setattr(method, "takes", facts)  # noqa: B010  a function has no such attribute for mypy
        return method

    return mark


class Reducer:
    """The owner of a part of the job's state. `listens`: what it takes in, and by which method."""

    listens: ClassVar[Mapping[type, str]] = {}

    def __init_subclass__(cls) -> None:
        cls.listens = {
            fact: name for name, method in vars(cls).items() for fact in getattr(method, "takes", ())
        }

    def observe(self, at: float, fact: object) -> None:
        """Take in what it listens to; anything else is passed by."""
        take = self.handler(type(fact))
        if take is not None:
            take(at, fact)

    def handler(self, kind: type) -> Callable[[float, Any], None] | None:
        """What takes in facts of this type: the method for the type itself, or for the nearest base."""
        name = next((self.listens[base] for base in kind.__mro__ if base in self.listens), None)
        return None if name is None else getattr(self, name)


@dataclass(frozen=True, slots=True)
class PhaseChanged(Event):
    """Sent by `Phases`. `since`: when the phase before it began, where that is known."""

    before: str
    since: float | None
    phase: str


@dataclass(frozen=True, slots=True)
class AttemptBegan(Event):
    """Sent by `Ranks`: another process has a rank's number, an elastic launcher started the job anew."""


@dataclass(frozen=True, slots=True)
class RankStarted(Event):
    """Sent by `Ranks`: a process that was not known has this rank."""

    found: RankFound

    @property
    def in_log(self) -> bool:
        """Sent at the end of a plain log, of a rank that was there from its beginning."""
        return self.found.placement.launcher == "log"


@dataclass(frozen=True, slots=True)
class RankDropped(Event):
    """Sent by `Ranks`: the process that was read under this number has another one, or is no rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class RankStopped(Event):
    """Sent by `Ranks`: the process was found stopped (SIGSTOP, a debugger)."""


@dataclass(frozen=True, slots=True)
class MainStackRead(Event):
    """Sent by `Ranks`: a sample of the rank's own threads was taken in. `main` is the one that trains."""

    rank: int
    main: ThreadStack | None
    reading: Reading | None


@dataclass(frozen=True, slots=True)
class StepMade(Event):
    """Sent by `Progress`: a line of the log, the training's bar, a counter that was learned or another node reported
    that training steps were made.

    `steps`: since the report before; 0 where that is not known (the first of an attempt, of another training in the
    same processes, of another counter). `line`: how many lines of a log on disk stand before and with it, where those are
    not all that were read by now; else 0.
    """

    iteration: int
    steps: int
    line: int = 0


@dataclass(frozen=True, slots=True)
class CounterGrew(Event):
    """Sent by `LearnedSteps`: a line of a trainer that diag does not know shows that a counter moved.

    `steps`: it counts training steps; then `iteration` is how many, over all epochs, and `where` is it in the log's own
    words ("batch 40 of epoch 3"). `anew`: it is not the counter that did before.
    """

    iteration: int
    total: int  # 0 when unknown
    text: str
    where: str
    steps: bool
    anew: bool = False
    before: tuple[tuple[float, int], ...] = ()  # then: how it grew until now, seconds and by how much
    line: int = 0  # as StepMade's


@dataclass(frozen=True, slots=True)
class Taken(Event):
    """Sent by `JobState` after an observation that can show movement: whether the job or this rank moved.

    `stopped`: the rank is. `stirred`: what moved is a child or a file, which move in a hang too. `phase` is
    the one before the observation.
    """

    moved: bool
    stopped: bool
    stirred: bool
    phase: str
    iteration: int | None
