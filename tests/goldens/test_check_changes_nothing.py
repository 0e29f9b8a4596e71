"""Detectors are asked by the engine once a second, and by nobody else today: who asks them twice, or between
two of these seconds, must change nothing, neither what is reported nor what they and the job's state know."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

import diag.engine.replay
from diag.engine.engine import Engine
from diag.engine.replay import replay
from diag.model import Change, Record
from tests.goldens import CAPTURES, Golden, goldens

# Whatever a check may write, with its reason: all of it follows from the rest, and is only kept.
CACHES = {
    "NcclProcesses._known": "who is who, asked for by each rank: of 1,000 ranks it is a million steps",
    "JobState._numbers": "the ranks in order, which all detectors ask for each second",
    "Collectives._explained": "a graph of 8,192 ranks takes two seconds",
    "Collectives._explain_at": "when the next such graph is made",
    "Ras._explained": "asked each second of a hang that may last for hours",
}
_KEEPING = {name.partition(".")[0] for name in CACHES}
pytestmark = pytest.mark.hardening
_EVERY_LOG = 40  # of those that have one finding at the most each
_MOMENTS = 10  # of a capture


def sample() -> list[Golden]:
    """All that is no plain log, and some of those."""
    logs = ("logs", "nccl")
    return [
        *(one for one in goldens() if one.group != "together" and not one.group.startswith(logs)),
        *[one for one in goldens() if one.group.startswith(logs)][::_EVERY_LOG],
    ]


class _Known(pickle.Pickler):
    """The bytes of all that an object of diag's own holds; of others (a compiled pattern, a method) their kind."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) or value is _of:
            return NotImplemented
        if type(value).__name__ in _KEEPING:
            return _of, (known_parts(value),)
        if type(value).__module__.partition(".")[0] in ("diag", "collections", "enum", "pathlib"):
            return NotImplemented
        return _of, (type(value).__name__, getattr(value, "__qualname__", ""))


def _of(*parts: object) -> object:
    return parts


def _parts(thing: object) -> list[tuple[str, Any]]:
    names = {name: None for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
    names |= getattr(thing, "__dict__", {})
    return [(name, getattr(thing, name)) for name in names if hasattr(thing, name)]


def known(thing: object) -> bytes:
    out = io.BytesIO()
    _Known(out, protocol=5).dump(thing)
    return out.getvalue()


def differing(before: dict[str, bytes], thing: object) -> list[str]:
    return [name for name, value in known_parts(thing).items() if before.get(name) != value]


def known_parts(thing: object) -> dict[str, bytes]:
    kind = type(thing).__name__
    return {name: known(value) for name, value in _parts(thing) if f"{kind}.{name}" not in CACHES}


class Restless(Engine):
    """Between its own checks somebody else asks each detector, also of moments to come."""

    every = 1

    def __init__(self, parsers: Any, detectors: Sequence[Any], *more: Any, **named: Any) -> None:
        super().__init__(parsers, detectors, *more, **named)
        self.asked = detectors

    def feed(self, record: Record) -> list[Change]:
        changes = super().feed(record)
        if self.records % self.every == 0:
            for at in (self.now, self.now, self.now + 0.37):
                for detector in self.asked:
                    list(detector.check(at, self.job))
                    list(detector.not_checked(self.job))
        return changes


class Watched(Restless):
    """Asks twice at some moments, and compares what is known before and after."""

    breaches: list[str] = []  # noqa: RUF012 - of one class made for one replay

    def feed(self, record: Record) -> list[Change]:
        changes = Engine.feed(self, record)
        if self.records % self.every:
            return changes
        job = known_parts(self.job)
        for detector in self.asked:
            before = known_parts(detector)
            answers = [
                (list(detector.check(self.now, self.job)), list(detector.not_checked(self.job)))
                for _ in range(2)
            ]
            if answers[0] != answers[1]:
                self.breaches.append(f"{detector.name} answers otherwise the second time")
            self.breaches += [f"{detector.name} changed its {name}" for name in differing(before, detector)]
        self.breaches += [f"the job's {name} changed" for name in differing(job, self.job)]
        return changes


@contextmanager
def engines_of(kind: type[Engine]) -> Iterator[None]:
    with mock.patch.object(diag.engine.replay, "Engine", kind):
        yield


def changes_of(golden: Golden) -> list[dict[str, Any]]:
    return [change.to_json() for change in replay([CAPTURES / path for path in golden.paths])[1]]


@pytest.mark.parametrize("golden", [pytest.param(one, id=one.name) for one in sample()])
def test_asking_between_the_checks_changes_nothing(golden: Golden) -> None:
    engine, changes, _ = replay([CAPTURES / path for path in golden.paths])
    every = max(1, engine.records // _MOMENTS)

    with engines_of(type("Now", (Restless,), {"every": every})):
        assert changes_of(golden) == [change.to_json() for change in changes]
    watched: Any = type("Now", (Watched,), {"every": every, "breaches": []})
    with engines_of(watched):
        changes_of(golden)
    assert sorted(set(watched.breaches)) == []
