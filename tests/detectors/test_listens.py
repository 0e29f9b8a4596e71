"""Facts go only to detectors that listen to them: each declares exactly what its `observe` reacts to."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator

import pytest

from diag.agent.cluster.digest import Collector
from diag.detectors import make_detectors
from diag.detectors.cluster import make_job_detectors
from diag.detectors.log_end import LogEndDetector
from diag.detectors.relations import Precedence
from diag.engine.engine import Engine
from diag.engine.importers.line_index import LineIndex
from diag.model import Finding, NotChecked, Record, observations
from diag.model.observations import Interrupted, Iteration, Observation, RunEnded
from diag.model.observations.base import Event
from diag.state.job import JobState


def _parts(owner: object) -> Iterator[object]:
    """What an object is made of that is itself handed facts by it."""
    names = [*getattr(owner, "__dict__", ()), *getattr(type(owner), "__slots__", ())]
    for part in (getattr(owner, name) for name in names):
        if hasattr(part, "observe") and not isinstance(part, JobState):
            yield part
            yield from _parts(part)


def _all() -> dict[str, object]:
    detectors = [*make_detectors(), *make_job_detectors(), LogEndDetector(), LineIndex(), Collector()]
    found = [one for detector in detectors for one in (detector, *_parts(detector))]
    return {f"{type(one).__module__}.{type(one).__name__}": one for one in found if hasattr(one, "observe")}


def _declared(listener: object) -> set[type]:
    """By the type of `fact`."""
    function = type(listener).observe  # type: ignore[attr-defined]
    hint = typing.get_type_hints(function)["fact"]
    if isinstance(hint, typing.TypeVar):
        return set(hint.__constraints__)
    return set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}


def _tree(listener: object) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(type(listener).observe)))  # type: ignore[attr-defined]


def _tested(listener: object) -> set[type]:
    """The types that `observe` asks for: by isinstance, `type(fact) is`, or a pattern."""
    space = type(listener).observe.__globals__  # type: ignore[attr-defined]
    found: set[type] = set()

    def take(node: ast.expr) -> None:
        value = eval(ast.unparse(node), dict(space))
        found.update(value if isinstance(value, tuple) else (value,))

    for node in ast.walk(_tree(listener)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            if ast.unparse(node.args[0]) == "fact":
                take(node.args[1])
        elif isinstance(node, ast.Compare) and ast.unparse(node.left) in ("type(fact)", "kind"):
            take(node.comparators[0])
        elif isinstance(node, ast.MatchClass):
            take(node.cls)
    return {kind for kind in found if issubclass(kind, (Observation, Event))}


def _of_parts(listener: object) -> set[type]:
    """Not of a part for facts of any kind, which its owner chooses."""
    return {
        kind
        for part in _parts(listener)
        if not isinstance(typing.get_type_hints(type(part).observe)["fact"], typing.TypeVar)  # type: ignore[attr-defined]
        for kind in getattr(part, "listens", _declared(part))
    }


LISTENERS = _all()


@pytest.mark.parametrize("name", sorted(LISTENERS))
def test_what_it_listens_to_is_what_its_observe_takes_and_reacts_to(name: str) -> None:
    listener = LISTENERS[name]
    declared = _declared(listener)
    listens = set(getattr(listener, "listens", declared))
    handled = _tested(listener) | _of_parts(listener)

    assert declared in (listens, {Observation}, {Observation, Event})
    assert handled - listens <= {observations.NcclFact}
    if handled:  # else all are treated alike, and mypy holds the body to what they have in common
        rest = 0 if Observation in declared else 1  # mypy knows the one type that no branch asks for
        assert len(listens - handled) <= rest


@pytest.mark.parametrize("detector", [*make_detectors(), *make_job_detectors()], ids=lambda one: one.name)
def test_detector_says_what_it_listens_to_once_each_and_no_family_of_facts(detector: typing.Any) -> None:
    assert len(detector.listens) == len(set(detector.listens))
    assert bool(detector.listens) == hasattr(detector, "observe")
    assert [kind for kind in detector.listens if kind in (Observation, observations.NcclFact)] == []


def test_lines_of_known_trainers_are_heard_by_no_detector() -> None:
    """That a step was made is `StepMade`, its numbers are a `Point`, whoever reported them."""
    hear = {name for name, one in LISTENERS.items() if Iteration in getattr(one, "listens", ())}

    assert hear == set()


class Notes:
    """A detector that notes what it is handed."""

    name = "notes"
    listens = (Iteration, RunEnded)

    def __init__(self) -> None:
        self.heard: list[str] = []

    def observe(self, at: float, fact: Iteration | RunEnded) -> None:
        self.heard.append(type(fact).__name__)

    def check(self, now: float, job: JobState) -> tuple[Finding, ...]:
        return ()

    def not_checked(self, job: JobState) -> tuple[NotChecked, ...]:
        return ()


def test_fact_goes_to_those_that_listen_to_it_and_to_nobody_else() -> None:
    class Deaf(Notes):
        name = "deaf"
        listens = ()

    notes, deaf = Notes(), Deaf()
    engine = Engine({"fact": lambda record: iter([record.payload])}, [deaf, notes], Precedence())

    for at, fact in enumerate((Iteration(None, 1, 2, "1/2"), Interrupted(None, 2), RunEnded(None, 0))):
        engine.feed(Record("fact", fact, at=1.0 + at))

    assert notes.heard == ["Iteration", "RunEnded"]
    assert deaf.heard == []
    assert engine.job.returncode == 0  # the job state hears of all
