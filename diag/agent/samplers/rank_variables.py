"""The variables of a suspected rank's own functions: when the suspicion begins, whenever it has come to another line,
and, where only their values change, more and more seldom."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.launch.runs import is_alive
from diag.model import Payload
from diag.model.observations import Frame
from diag.sources.host.job_files import JobFiles
from diag.sources.stacks import mapped, marks, reached, variables
from diag.sources.stacks.remote_stack import RemoteStacks
from diag.state.own_code import own_frames

_EVERY_SECONDS = 2.0  # as often as its stacks: a reading takes 1 ms of CPU
_CHANGED_SECONDS, _GROWTH, _LONGEST_SECONDS = 5.0, 1.5, 60.0
_MOVED_SECONDS = 15.0  # of one that is in other functions each time
_UNSUSPECTED_SECONDS = 3600.0  # until the hub orders otherwise
_MOST_OWN = 8  # frames of a thread, the innermost
_MOST_CALLED = 4  # through which a call of the program goes: wrappers, and what it meant
_MOST_CHILDREN = 4
_MOST_STRANGERS = 4
_DEADLINE = 0.5


class VariableSampler(RankSampler):
    name = what = "variables"
    sources = (variables.SOURCE,)
    woken_by = ("closer",)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._memory = RemoteStacks()
        self._reported: dict[int, _Reported] = {}
        self._failed = False

    def sample(self) -> None:
        if not self.rank.closer:
            self._reported.clear()  # what was reported under an earlier suspicion is old
        elif self.rank.reads_variables:
            self.read_variables()

    def period(self, cpu: float, wall: float) -> float:
        suspected = self.rank.closer and self.rank.reads_variables and not self._failed
        return _EVERY_SECONDS if suspected else _UNSUSPECTED_SECONDS

    def read_variables(self) -> str:
        """Returns why there is no reading, empty when there is."""
        rank = self.rank
        if not is_alive(rank.pid, rank.start_ticks):
            return "the process is gone"
        began = time.monotonic()
        paths: list[str] = []  # as they are in memory: only what is found there is reported
        payload = self._memory.variables(rank.pid, choose, variables.REDACT, _DEADLINE, paths=paths)
        if not is_alive(rank.pid, rank.start_ticks):  # ended meanwhile: what was read may be another's
            return "the process is gone"
        if "failed" in payload:
            if payload["failed"] in variables.FAILURES and not self._failed:
                self._failed = True
                self.reporter.record(variables.SOURCE, payload)
            return variables.explain(payload)[0]
        self._report(rank.pid, payload, began, paths)
        children = rank.by_turns(rank.children)[:_MOST_CHILDREN]
        for pid, _ in children:
            began = time.monotonic()
            payload = self._memory.variables(pid, choose, variables.REDACT, _DEADLINE, parent_pid=rank.pid)
            if "failed" not in payload:
                self._report(pid, payload, began)
        strangers = rank.strangers_by_turns(_MOST_STRANGERS)  # none of the job's, which it waits for
        for pid, ticks in strangers:
            began = time.monotonic()
            payload = self._memory.variables(pid, choose, variables.REDACT, _DEADLINE, parent_pid=rank.pid)
            if "failed" not in payload and is_alive(pid, ticks):
                self._report(pid, payload, began)
        self._memory.keep_only({rank.pid, *(pid for pid, _ in (*children, *strangers))})
        return ""

    def _report(self, pid: int, payload: Payload, began: float, paths: Sequence[str] = ()) -> None:
        threads, tasks = payload["threads"], payload.get("tasks", ())
        if threads and self._reported.setdefault(pid, _Reported()).is_due(threads, began, tasks):
            payload |= self._files(paths) if paths else {}
            if pid == self.rank.pid and (found := reached.read(pid, variables.hidden)):
                payload["reached"] = found
            if pid == self.rank.pid and (files := mapped.read(pid, variables.hidden)):
                payload["mapped"] = files
            payload["clocks"] = {"monotonic": time.monotonic(), "time": time.time()}
            self.reporter.record(variables.SOURCE, payload, time.monotonic() - began)

    def _files(self, paths: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Of what is found there."""
        process = self.rank.pid, self.rank.start_ticks
        try:
            with JobFiles(self.rank.pid) as files:
                cwd = files.cwd()
                whole = [path if path.startswith("/") else f"{cwd}/{path}" for path in paths]
                found = {
                    "marks": marks.read(files, whole, process, variables.hidden),
                    "folders": marks.folders(files, whole, variables.hidden),
                }
        except OSError:
            return {}
        return {name: rows for name, rows in found.items() if rows}


class _Reported:
    """What was last reported of one process."""

    def __init__(self) -> None:
        self._places: list[Any] = []
        self._values: list[Any] = []
        self._at = -_LONGEST_SECONDS
        self._pause = _CHANGED_SECONDS

    def is_due(self, threads: list[dict[str, Any]], now: float, tasks: Sequence[dict[str, Any]] = ()) -> bool:
        places = [
            (thread["id"], frame["function"], frame["file"], frame["line"])
            for thread in threads
            for frame in thread["frames"]
        ]
        values = [frame["values"] for thread in threads for frame in thread["frames"]]
        values.append(sorted(task["frames"] for task in tasks))  # in the order of a set of addresses
        if (places, values) == (self._places, self._values):
            return False
        moved = {place[1:3] for place in places} != {place[1:3] for place in self._places}
        if now - self._at < (min(self._pause, _MOVED_SECONDS) if moved else self._pause):
            return False
        self._pause = min(_LONGEST_SECONDS, self._pause * _GROWTH)
        self._places, self._values, self._at = places, values, now
        return True


def choose(stack: Sequence[tuple[str, str, int]]) -> list[tuple[int, bool]]:
    """The program's own frames, and the calls of libraries that the innermost of them is in.

    >>> choose([("main", "/srv/train.py", 9), ("wait", "/usr/lib/python3.11/threading.py", 5)])
    [(0, False), (1, True)]
    """
    frames = [Frame(*frame) for frame in stack]
    own = {id(frame) for frame in own_frames(frames)}
    places = [at for at, frame in enumerate(frames) if id(frame) in own]
    if not places:
        return []
    called = range(places[-1] + 1, min(len(frames), places[-1] + 1 + _MOST_CALLED))
    return [*((at, False) for at in places[-_MOST_OWN:]), *((at, True) for at in called)]
