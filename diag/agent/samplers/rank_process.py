"""The process of a rank: /proc, the limits that it lives under, its own log files, what it has of RDMA, and its end."""

from __future__ import annotations

import contextlib
import threading
import time

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.launch.runs import is_alive
from diag.model import Payload
from diag.sources.host import cgroup, child_exits, exits, proc, shm
from diag.sources.host.process_tree import split_stat
from diag.sources.logs import written
from diag.sources.network import rdma_access

_LIMITS_SECONDS = 60.0
_LEAST_PAUSE_SECONDS = 0.05


class ExitSampler(RankSampler):
    """Waits for the rank's end, which is that of all others."""

    name = what = "exit"
    sources = (exits.SOURCE,)

    def run(self) -> None:
        watch = exits.ExitWatch(self.rank.pid, self.rank.start_ticks)
        while (payload := watch.wait(timeout=3600.0)) is None:
            pass
        self.rank.memory.read_cgroup()  # the OOM counter of the moment of death
        self.reporter.record(exits.SOURCE, payload)
        self.rank.end()


_LOOK_SECONDS = 2.0  # ours: for children that have come since
_MOST_ENDS = 256  # of a run: a program that starts others by the thousand says nothing by how they end


class ChildExitSampler(RankSampler):
    """Waits for the ends of the rank's children that do not end well."""

    name = what = "child exits"
    sources = (child_exits.SOURCE,)

    def run(self) -> None:
        exits_of, left = child_exits.ChildExits(), _MOST_ENDS
        try:
            while left > 0 and not self.rank.gone.is_set():
                exits_of.watch(pid for pid, _ in self.rank.children)
                for payload in exits_of.ended(_LOOK_SECONDS)[:left]:
                    left -= 1
                    self.reporter.record(child_exits.SOURCE, payload)
        finally:
            exits_of.close()


class ProcessSampler(RankSampler):
    name = what = "proc"
    sources = (proc.SOURCE, cgroup.SOURCE, shm.SOURCE)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank, rank.proc_seconds)
        self._reader: proc.ProcessReader | None = None
        self._lock = threading.Lock()
        self._limits_at = self._node_at = -1e9

    def sample(self) -> None:
        rank, now = self.rank, time.monotonic()
        node = now - self._node_at >= rank.node_seconds
        try:
            self.read_process(limits=now - self._limits_at >= _LIMITS_SECONDS, detail=rank.closer or node)
        except proc.ProcessGone:
            self.stop()
            return
        if now - self._limits_at >= _LIMITS_SECONDS:
            self._limits_at = now
        if node:
            self._node_at = now
            rank.memory.read_cgroup()
            rank.memory.read_shm()
        elif rank.memory.crowded:
            rank.memory.read_cgroup()

    def period(self, cpu: float, wall: float) -> float:
        return max(self.every_seconds, wall + _LEAST_PAUSE_SECONDS)

    def read_process(self, *, limits: bool, detail: bool) -> None:
        """For several threads. Raises ProcessGone."""
        if self._reader is None:
            self._reader = proc.ProcessReader(self.rank.pid, start_ticks=self.rank.start_ticks)
        if limits:
            self.reporter.record(proc.SOURCE, self._reader.limits())
        began = time.monotonic()
        with self._lock, self.rank.stops.reading():
            payload = self._reader.sample(detail=detail, other_ranks=self.rank.other_ranks)
            if marks := self.rank.pauses.marks:  # behind the reading: what began meanwhile is in it
                payload["pauses"] = marks
        self.rank.children = _child_names(payload)
        self.reporter.record(proc.SOURCE, payload, time.monotonic() - began)


def _child_names(payload: Payload) -> list[tuple[int, str]]:
    """Pid and name of the children in a proc payload; Python ones cannot be distinguished by it."""
    names = []
    for child in payload["children"]:
        with contextlib.suppress(ValueError):
            names.append(split_stat(child.get("stat") or "")[:2])
    return names


_WRITTEN_SECONDS = 5.0
_SEARCH_SECONDS = 10.0  # then twice as long each time: a logger's file is opened at the start
_LONGEST_SEARCH_SECONDS = 300.0
_MOST_STRANGERS = 4


class WrittenSampler(RankSampler):
    """What the rank writes into files of its own: often read, and seldom searched for. On a thread of its own:
    the file system of such a file may not answer."""

    name = what = "own log files"
    sources = (written.SOURCE,)
    delay_seconds = _WRITTEN_SECONDS
    woken_by = ("closer",)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank, _WRITTEN_SECONDS)
        self._reader = written.WrittenReader(rank.pid)
        self._told_last = False  # under this suspicion
        self._told_of: set[int] = set()  # others, which the rank waits for
        self._search_at = 0.0
        self._pause = _SEARCH_SECONDS

    def sample(self) -> None:
        now = time.monotonic()
        with contextlib.suppress(OSError):  # gone, or not to be looked at: then there is one channel less
            if now >= self._search_at:
                self._reader.find()
                self._search_at = now + self._pause
                self._pause = min(_LONGEST_SEARCH_SECONDS, 2 * self._pause)
            payload = self._reader.sample()
            if payload["files"]:
                self.reporter.record(written.SOURCE, payload, time.monotonic() - now)
            if self.rank.closer and not self._told_last:
                self._reader.find()
                if (payload := self._reader.last())["last"]:
                    self.reporter.record(written.SOURCE, payload, time.monotonic() - now)
            self._told_last = self.rank.closer
        if self.rank.closer:
            self._tell_of_others()
        else:
            self._told_of.clear()

    def _tell_of_others(self) -> None:
        """What those end with that are none of the job's."""
        for pid, ticks in self.rank.strangers_by_turns(_MOST_STRANGERS):
            if pid in self._told_of:
                continue
            self._told_of.add(pid)
            began = time.monotonic()
            reader = written.WrittenReader(pid, beside=self.rank.pid)
            with contextlib.suppress(OSError):
                reader.find()
                if (payload := reader.last())["last"] and is_alive(pid, ticks):
                    self.reporter.record(written.SOURCE, payload, time.monotonic() - began)


_FIRST_RDMA_SECONDS = (
    60.0  # NCCL opens its devices after the process group is made, most often within a minute
)
_RDMA_SECONDS = 300.0  # a reading costs 2 ms of CPU for a torch rank, 45 ms with 10,000 open files
_RDMA_AGAIN_SECONDS = 10.0  # however often suspicions come and go


class RdmaSampler(RankSampler):
    """Seldom: at the start, a minute later, when a suspicion begins, and each five minutes. On a thread of its own,
    since a rank's memory map waits for the rank's own changes of it."""

    name = what = "rdma_access"
    sources = (rdma_access.SOURCE,)
    woken_by = ("closer",)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._reader = rdma_access.RdmaAccessReader(rank.pid, rank.start_ticks)
        self._lock = threading.Lock()
        self._read_at = -_RDMA_AGAIN_SECONDS
        self._readings = 0
        self._wait = 0.0

    def sample(self) -> None:
        since = time.monotonic() - self._read_at
        if since < _RDMA_AGAIN_SECONDS:  # a suspicion has come soon after a reading
            self._wait = _RDMA_AGAIN_SECONDS - since
            return
        self._read_at = time.monotonic()
        self._readings += 1
        self._wait = _FIRST_RDMA_SECONDS if self._readings == 1 else _RDMA_SECONDS
        self.read_access()

    def period(self, cpu: float, wall: float) -> float:
        return self._wait

    def read_access(self) -> str:
        """Returns why it could not be read, empty when it was."""
        if not self._lock.acquire(timeout=1.0):
            return "an earlier reading has not come back from the kernel"
        try:
            began = time.monotonic()
            self.reporter.record(rdma_access.SOURCE, self._reader.sample(), time.monotonic() - began)
            return ""
        except ProcessLookupError as error:
            return str(error)
        finally:
            self._lock.release()
