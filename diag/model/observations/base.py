"""What every fact is, and what each source may say of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from diag.model import Record


@dataclass(frozen=True, slots=True)
class Observation:
    """Base of all: the rank it is about, or None for the node or the job."""

    rank: int | None


@dataclass(frozen=True, slots=True)
class Unparsed(Observation):
    """A record that its parser should have understood and did not."""

    source: str
    reason: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class SourceFailed(Observation):
    """A source cannot look. The finding it would have served becomes `not checked`, with this reason."""

    source: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class SourceWorks(Observation):
    """The source can look (again): withdraws an earlier SourceFailed of the same source and rank."""

    source: str


@dataclass(frozen=True, slots=True)
class Event:
    """Base of what follows from observations: the job's state announces it, so that nobody concludes it a second
    time (`diag/state/reducer.py`)."""


class Listener(Protocol):
    """Who keeps something of the facts that it is handed: those of exactly these types, no subclasses of them.

    The type of `fact` in an `observe` is the union of what it `listens` to.
    """

    @property
    def listens(self) -> tuple[type[Observation | Event], ...]: ...

    def observe(self, at: float, fact: Any) -> None: ...


def by_type(
    listeners: Iterable[Listener],
) -> dict[type[Observation | Event], list[Callable[[float, Any], None]]]:
    """For each type the `observe` of all that listen to it, in their order."""
    table: dict[type[Observation | Event], list[Callable[[float, Any], None]]] = {}
    for listener in listeners:
        for kind in listener.listens:
            table.setdefault(kind, []).append(listener.observe)
    return table


# Of one source: a record into the facts in it. Pure; what it should have understood and did not is `Unparsed`.
Parser = Callable[[Record], Iterator[Observation]]
