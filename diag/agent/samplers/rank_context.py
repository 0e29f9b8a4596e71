"""The rank that a sidecar is beside, and what its samplers share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from diag.agent.samplers.sampler import Reporter, Sampler
from diag.sources.host import cgroup, shm
from diag.sources.host.pauses import Pauses
from diag.text.errors import SourceUnavailable


class RankMemory:
    """Readings of the limits that the rank lives under, for several threads. Each returns why there is none,
    empty when there is."""

    def __init__(self, pid: int, reporter: Reporter, gone: threading.Event) -> None:
        self._pid, self._reporter, self._gone = pid, reporter, gone
        self._cgroup: cgroup.CgroupReader | None = None
        self._lock = threading.Lock()

    @property
    def crowded(self) -> bool:
        """What filled it in the last seconds is what one asks after a kill."""
        return self._cgroup is not None and self._cgroup.crowded

    def read_cgroup(self) -> str:
        if not self._lock.acquire(timeout=1.0):
            return "an earlier reading has not come back from the kernel"
        try:
            if self._cgroup is None:
                self._cgroup = cgroup.CgroupReader(self._pid)
            self._reporter.record(cgroup.SOURCE, self._cgroup.sample())
            self._reporter.works("cgroup")
            return ""
        except OSError as error:
            return self._failed("cgroup", error)
        finally:
            self._lock.release()

    def needed(self) -> tuple[int, int | None] | None:
        """Bytes, and their limit; None where it has not been read in full yet, or is about to."""
        if self._cgroup is None or not self._lock.acquire(timeout=0.05):
            return None
        try:
            return self._cgroup.needed()
        finally:
            self._lock.release()

    def read_shm(self) -> str:
        try:
            self._reporter.record(shm.SOURCE, shm.read(self._pid))
            self._reporter.works("shm")
            return ""
        except (OSError, SourceUnavailable) as error:
            return self._failed("shm", error)

    def _failed(self, what: str, error: Exception) -> str:
        if not self._gone.is_set():
            self._reporter.failed(what, str(error), getattr(error, "remedy", ""))
        return str(error)


class OwnStops:
    """Keeps apart those who stop the rank for a moment, and those who read in which state it is: a stop of ours is no
    finding. Readers do not wait for each other, so that one that hangs in the kernel holds up no other. Each stop is marked
    in `pauses`, before it begins and after it has ended."""

    def __init__(self, pauses: Pauses | None = None) -> None:
        self.pauses = pauses
        self._changed = threading.Condition()
        self._readers = 0
        self._stopped = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._stopped)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def stopping(self, seconds: float) -> Iterator[bool]:
        """False where readers did not come back in so many seconds: then it must not be stopped."""
        with self._changed:
            mine = self._changed.wait_for(lambda: not self._readers and not self._stopped, seconds)
            self._stopped = self._stopped or mine
        try:
            if mine and self.pauses is not None:
                self.pauses.mark()
            yield mine
        finally:
            if mine:
                if self.pauses is not None:
                    self.pauses.mark()
                with self._changed:
                    self._stopped = False
                    self._changed.notify_all()


class RankContext:
    """`task` is what the hub started the sidecar with."""

    def __init__(self, task: dict[str, Any], reporter: Reporter) -> None:
        self.number = int(task["rank"])
        self.pid = int(task["pid"])
        self.local_rank = int(task.get("local_rank", 0))
        self.start_ticks = int(task["start_ticks"])
        self.run_dir = Path(task["run_dir"]) if task.get("run_dir") else None
        self.signal = int(task.get("stack_signal") or 0)
        self.stack_seconds = float(task["stack_seconds"])
        self.close_stack_seconds = float(task["close_stack_seconds"])
        self.proc_seconds = float(task["proc_seconds"])
        self.node_seconds = float(task["node_seconds"])
        self.reads_variables = task.get("variables") is True
        self.reporter = reporter
        self.gone = threading.Event()
        self.pauses = Pauses(self.pid, self.start_ticks)
        self.stops = OwnStops(self.pauses)
        self.closer = False  # the job is suspected
        self.watches_memory = False  # for the ranks of its cgroup
        self.children: list[tuple[int, str]] = []  # pid and name, as last read
        # pid and start in ticks of those that it waits for and that are none of the job's, as last read
        self.strangers: tuple[tuple[int, int], ...] = ()
        self.awaited: frozenset[int] = (
            frozenset()
        )  # pids on the way from its main thread to the last one waited for
        # Pids. A rank that this one has started is no child of it: it has a sidecar of its own.
        self.other_ranks = frozenset(map(int, task.get("other_ranks", ())))
        self.memory = RankMemory(self.pid, reporter, self.gone)
        self._samplers: list[RankSampler] = []

    def by_turns(self, children: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """In which its children are read: those that it waits for first, then workers of a DataLoader."""
        return sorted(
            children, key=lambda one: (one[0] not in self.awaited, one[1] != "pt_data_worker", one[0])
        )

    def strangers_by_turns(self, most: int) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(self.strangers, key=lambda one: one[0] not in self.awaited)[:most])

    def add(self, sampler: RankSampler) -> None:
        self._samplers.append(sampler)

    def wake(self, by: str) -> None:
        """Those that `by` makes read at once: closer, memory or surge."""
        for sampler in self._samplers:
            if by in sampler.woken_by:
                sampler.wake()

    def end(self) -> None:
        """The rank has ended."""
        self.gone.set()
        self.pauses.forget()
        for sampler in self._samplers:
            sampler.stop()


class RankSampler(Sampler):
    """One of a rank, which its sidecar has; until the rank is gone."""

    what: ClassVar[str]
    woken_by: ClassVar[tuple[str, ...]] = ()  # what makes its next reading due at once

    def __init__(self, rank: RankContext, every_seconds: float = 0.0) -> None:
        super().__init__(rank.reporter, every_seconds)
        self.rank = rank
        rank.add(self)
