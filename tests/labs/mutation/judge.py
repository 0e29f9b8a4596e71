"""A plugin of pytest: runs all tests once to see which lines they run, then for each mutant a child of this process with
the tests that run its lines, the quickest first, until one fails."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.labs.mutation.lines import Lines, statement_lines, traced
from tests.labs.mutation.mutants import Mutant
from tests.labs.mutation.swap import place_of, put_in

_CPU_SECONDS = 600  # a mutant may loop
_SURVIVED, _KILLED, _BROKEN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    outcome: str  # killed, survived or timeout
    by: str  # the first test that failed
    tests: int  # that run its lines
    diff: str


class Judge:
    def __init__(
        self, root: Path, mutants: list[Mutant], workers: int, budget: float, done: Callable[[Result], None]
    ) -> None:
        self._root, self._mutants, self._workers, self._budget, self._done = (
            root,
            mutants,
            workers,
            budget,
            done,
        )
        self._ran: list[tuple[float, Lines, pytest.Item]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        files = {str(self._root / one.path) for one in self._mutants}
        for item, following in _with_next(session.items):
            began = time.process_time()
            with traced(files) as seen:
                reports = runtestprotocol(item, log=False, nextitem=following)
            if any(report.failed for report in reports):
                print(f"left out, as it fails without any mutant: {item.nodeid}", flush=True)
                continue
            lines = {file: frozenset(numbers) for file, numbers in seen.items()}
            self._ran.append((time.process_time() - began, lines, item))
        self._ran.sort(key=lambda ran: ran[0])
        running: dict[int, tuple[Mutant, int, int]] = {}
        for mutant in self._mutants:
            if len(running) >= self._workers:
                self._reap(running)
            self._start(mutant, running)
        while running:
            self._reap(running)
        return True

    def _start(self, mutant: Mutant, running: dict[int, tuple[Mutant, int, int]]) -> None:
        source, file = (self._root / mutant.path).read_text(), str(self._root / mutant.path)
        lines, spent, tests = statement_lines(source, mutant.line), 0.0, []
        for seconds, seen, item in self._ran:
            there = seen.get(file, frozenset())
            if there and (lines is None or any(line in there for line in lines)):
                spent += seconds
                if spent <= self._budget:
                    tests.append(item)
        place = place_of(source, mutant.line)
        assert place is not None
        reads, writes = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writes)
            running[pid] = (mutant, reads, len(tests))
            return
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        status = _BROKEN  # a table that cannot be built: every import would fail
        try:
            module = mutant.path.removesuffix(".py").replace("/", ".")
            put_in(module, mutant.source(self._root), place)
            for item, following in _with_next(tests):
                if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                    os.write(writes, item.nodeid.encode())
                    status = _KILLED
                    break
            else:
                status = _SURVIVED
        except BaseException as error:
            os.write(writes, repr(error)[:500].encode())
        finally:
            os._exit(status)

    def _reap(self, running: dict[int, tuple[Mutant, int, int]]) -> None:
        pid, status = os.waitpid(-1, 0)
        if pid not in running:
            return
        mutant, reads, tests = running.pop(pid)
        with os.fdopen(reads, "rb") as pipe:
            by = pipe.read().decode()
        if os.WIFSIGNALED(status):
            outcome = "timeout"
        else:
            outcome = {_SURVIVED: "survived", _KILLED: "killed"}.get(os.WEXITSTATUS(status), "killed")
        source, mutated = (self._root / mutant.path).read_text(), mutant.source(self._root)
        diff = unified_diff(source.splitlines(), mutated.splitlines(), lineterm="", n=2)
        lines = "\n".join(line for line in diff if not line.startswith(("---", "+++")))
        self._done(Result(mutant.name, outcome, by, tests, lines))
        sys.stdout.flush()


def _with_next(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=False)
