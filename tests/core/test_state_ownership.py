"""Who writes the job's state: its reducers, each its own part. Everybody else reads, and tells by `observe`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import diag
from diag.state.job import JobState
from diag.state.rank_view import RankView
from diag.state.reducer import Reducer
from diag.state.view import JobView

ROOT = Path(diag.__file__).parent
# Names by which modules hold the job's state and one of its ranks.
HOLDERS = {"job", "_job", "rank"}
# There `rank` is a RankContext: a sidecar has no state of the job.
IN_SIDECARS = {
    "agent/sidecar.py",
    "agent/stack_sampler.py",
    "agent/samplers/rank_context.py",
    "agent/samplers/rank_process.py",
    "agent/samplers/rank_suspicion.py",
}
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
    "reverse", "rotate", "setdefault", "sort", "update",
}  # fmt: skip
# They keep what they found for who asks again.
CACHES = {
    "alive",
    "calls_apart",
    "current",
    "last_moves",
    "living",
    "outlook",
    "placed",
    "unplaced",
    "world_size",
}


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (item for item in node.body if isinstance(item, ast.FunctionDef))


def _chain(node: ast.expr) -> list[str]:
    """The names of `a.b[c].d()`, outermost first; empty for what does not begin with a name."""
    names: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return []
    return [node.id, *reversed(names)]


def _written(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """What is assigned to, and what a mutator is called on."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.lineno, _chain(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.lineno, [*_chain(node.func.value), f"{node.func.attr}()"]


def _mutators_of_the_state() -> set[str]:
    """The methods of diag/state that change what their object keeps."""
    found = set()
    for path in sorted((ROOT / "state").glob("*.py")):
        for function in _functions(ast.parse(path.read_text())):
            for _, names in _written(function):
                changes = not names[-1:][0].endswith("()") or names[-1][:-2] in MUTATORS if names else False
                if changes and names[0] == "self" and len(names) > 1:
                    found.add(function.name)
    return found - CACHES - {"__init__"}


def _aliases(function: ast.AST) -> set[str]:
    """Names that a function gives to parts of the state: `log = job.saves.log`."""
    named = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    chains = {
        node.targets[0].id: _chain(node.value)
        for node in named
        if isinstance(node.value, (ast.Attribute, ast.Subscript)) and isinstance(node.targets[0], ast.Name)
    }
    return {name for name, chain in chains.items() if HOLDERS.intersection(chain[:-1])}


def _outside_writes(text: str, mutators: set[str]) -> list[tuple[int, str]]:
    found, tree = set(), ast.parse(text)
    scopes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for scope in (tree, *scopes):
        holders = HOLDERS | (_aliases(scope) if scope is not tree else set())
        for line, names in _written(scope):
            place = next((index for index, name in enumerate(names) if name in holders), None)
            if place is None or place == len(names) - 1:
                continue
            if not names[-1].endswith("()") or names[-1][:-2] in mutators:
                found.add((line, ".".join(names)))
    return sorted(found)


def test_nobody_outside_of_the_state_does_more_than_tell_it_an_observation() -> None:
    mutators = MUTATORS | _mutators_of_the_state() | {"observe"}

    found = [
        (str(path.relative_to(ROOT)), chain)
        for path in sorted(ROOT.rglob("*.py"))
        if path.parent != ROOT / "state" and path.relative_to(ROOT).as_posix() not in IN_SIDECARS
        for _, chain in _outside_writes(path.read_text(), mutators)
    ]

    assert found == [("cli/flame.py", "engine.job.observe()"), ("engine/engine.py", "self.job.observe()")]


def test_each_way_to_write_the_state_is_seen_and_reading_it_is_not() -> None:
    mutators = MUTATORS | _mutators_of_the_state()
    writes = [
        "job.saves.memory.steep = 0",
        "engine.job.sources.cut_off |= True",
        "self._engine.job.machine.gpus[0] = gpu",
        "del job.machine.gpus[0]",
        "job.log.tail.append(line)",
        "rank.moved['stack'] = 1.0",
        "job.ranks[0].tail.clear()",
        "job.ranks.get(0).see_exit(now, fact)",
        "job.phases.mark(now, 'steady')",
        "job.progress.steps.start_over()",
        "rank.exit, rank.exited_at = fact, now",
        "def f(job):\n    log = job.saves.log\n    log.asynchronous = True",
    ]
    reads = [
        "gpus = job.machine.gpus",
        "job = engine.job",
        "job.alive_ranks()",
        "job.saves.memory.outlook(now, job.run.words)",
        "seen[rank.rank] = rank.stack",
        "found.append(job.log.tail[-1])",
        "job.phases.then(at)",
        "def f(job):\n    log, found = job.saves.log, []\n    found.append(log.current)",
    ]

    assert [text for text in writes if not _outside_writes(text, mutators)] == []
    assert [text for text in reads if _outside_writes(text, mutators)] == []


def test_nothing_of_a_rank_is_written_outside_of_the_state_under_any_name() -> None:
    kept = {field.name for field in fields(RankView)} - {
        "node",
        "pids",
    }  # others keep such names of their own

    found = [
        (str(path.relative_to(ROOT)), names)
        for path in sorted(ROOT.rglob("*.py"))
        if path.parent != ROOT / "state"
        for _, names in _written(ast.parse(path.read_text()))
        if kept.intersection(names[1:]) and names[0] != "self"
        if not names[-1].endswith("()") or names[-1][:-2] in MUTATORS
    ]

    assert found == []


def test_parts_of_the_job_are_final_and_every_one_is_told() -> None:
    tree = ast.parse(inspect.getsource(inspect.getmodule(JobView)))  # type: ignore[arg-type]
    targets = [(node, node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    targets += [(node, node.targets[0]) for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    parts = [node for node, target in targets if ast.unparse(target).startswith("self.")]
    job = JobState()

    assert parts and all("Final" in ast.unparse(node) for node in parts)
    kept = [part for part in vars(job).values() if isinstance(part, Reducer)]
    assert sorted(map(id, job._reducers)) == sorted(map(id, kept))


def test_each_observation_reaches_exactly_the_parts_that_listen_to_it() -> None:
    job = JobState()
    for reducer in job._reducers:
        assert reducer.listens, type(reducer)
        for kind, name in reducer.listens.items():
            assert reducer.handler(kind) == getattr(reducer, name)
            assert reducer.handler(type("Unknown", (), {})) is None
