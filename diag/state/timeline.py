"""What the job did over its whole life, in few enough points to be drawn: phases, steps, GPUs, memory,
networks.

All series share one grid of moments. When it is full, two neighbours become one and each is twice as long: an
hour and a week take the same memory. Observations and their times alone fill it, so live and replay show the same.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from diag.model.observations import (
    CgroupMemory,
    GpuSample,
    HostMemory,
    InterfacesSeen,
    Iteration,
    MetricsLogged,
    Observation,
    ProcessTree,
    RdmaPortsSeen,
    SharedMemory,
)
from diag.model.observations.base import Event
from diag.state.gpustate import ranks_of_gpus
from diag.state.reducer import StepMade
from diag.state.traffic import recent
from diag.state.view import JobView

BUCKETS: Final = 240
_FIRST_SECONDS = 1.0
_MOST_PHASES = 512
_TRAFFIC_SECONDS = 15.0  # over which bytes a second are measured: two or three readings
_MOST_DRAWN = (
    16  # members of a series that are drawn one by one; of more their range, and each when asked for
)
_LOSSES = ("loss", "lm loss")

# Unit, and whether the highest of a moment counts (what a limit is held against) or the mean.
UNITS: Final[Mapping[str, tuple[str, bool]]] = {
    "step_seconds": ("seconds", False),
    "loss": ("", False),
    "gpu_utilization_ratio": ("ratio", False),
    "gpu_memory_bytes": ("bytes", True),
    "gpu_power_watts": ("watts", False),
    "rank_rss_bytes": ("bytes", True),
    "rank_cpu_ratio": ("ratio", False),
    "memory_bytes": ("bytes", True),  # of the rank's memory cgroup, what cannot be taken back
    "host_memory_bytes": ("bytes", True),
    "shm_bytes": ("bytes", True),
    "rdma_bytes_per_second": ("bytes/s", False),
    "socket_bytes_per_second": ("bytes/s", False),
}


class _Series:
    """One value a moment: NaN where nothing was read."""

    __slots__ = ("counts", "highest", "sums")

    def __init__(self, highest: bool) -> None:
        self.highest = highest
        self.sums = array("d", bytes(8 * BUCKETS))
        self.counts = array("I", bytes(4 * BUCKETS))

    def add(self, index: int, value: float) -> None:
        if self.highest:
            self.sums[index] = max(self.sums[index], value) if self.counts[index] else value
            self.counts[index] = 1
        else:
            self.sums[index] += value
            self.counts[index] += 1

    def halve(self) -> None:
        sums, counts = self.sums, self.counts
        for index in range(BUCKETS):
            pair = [each for each in (2 * index, 2 * index + 1) if each < BUCKETS and counts[each]]
            values, read = [sums[each] for each in pair], sum(counts[each] for each in pair)
            sums[index] = max(values, default=0.0) if self.highest else sum(values)
            counts[index] = min(1, read) if self.highest else read

    def values(self, count: int) -> list[float | None]:
        return [
            _short(self.sums[index] / self.counts[index]) if self.counts[index] else None
            for index in range(count)
        ]


class Timeline:
    """Given each observation after the job state has taken it."""

    def __init__(self) -> None:
        self._began: float | None = None  # the first moment
        self._width = _FIRST_SECONDS  # seconds of a moment
        self._count = 0  # moments so far
        self._series: dict[tuple[str, int | None], _Series] = {}  # by name and GPU or rank
        self._phases: deque[tuple[float, str]] = deque(maxlen=_MOST_PHASES)  # when each began
        self._phase = ""  # the last of them
        self._spent: dict[str, float] = {}  # seconds in each that is over
        self._phase_at = 0.0  # since when it is the last
        self._step_at = 0.0  # when the step that was drawn last was reported
        self._limits: dict[str, int] = {}  # what a series is held against

    # -- observing ---------------------------------------------------------------------------------------

    def observe(self, at: float, fact: Observation | Event, job: JobView) -> None:
        if job.phase != self._phase and at > 0:
            if self._phase:
                self._spent[self._phase] = self._spent.get(self._phase, 0.0) + at - self._phase_at
            self._phase, self._phase_at = job.phase, at
            self._phases.append((at, job.phase))
            self._place(at)
        take = _TAKES.get(type(fact))
        if take is not None and at > 0:
            take(self, at, fact, job)

    def _place(self, at: float) -> int:
        """The moment's number; makes room for it."""
        if self._began is None:
            self._began = at
        index = int((at - self._began) / self._width)
        while index >= BUCKETS:
            for series in self._series.values():
                series.halve()
            self._width *= 2
            self._count = (self._count + 1) // 2
            index = int((at - self._began) / self._width)
        self._count = max(self._count, index + 1)
        return index

    def _add(self, at: float, name: str, member: int | None, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            return
        index = self._place(at)
        series = self._series.get((name, member))
        if series is None:
            series = self._series[(name, member)] = _Series(UNITS[name][1])
        series.add(index, value)

    def _tree(self, at: float, fact: ProcessTree, job: JobView) -> None:
        rank = job.ranks.get(fact.rank) if fact.rank is not None else None
        if rank is None or rank.tree is not fact:
            return
        self._add(at, "rank_rss_bytes", rank.rank, float(fact.main.rss_bytes))
        self._add(at, "rank_cpu_ratio", rank.rank, rank.cpu_ratio)

    def _gpu(self, at: float, fact: GpuSample, job: JobView) -> None:
        self._add(at, "gpu_utilization_ratio", fact.index, fact.utilization_ratio)
        self._add(at, "gpu_power_watts", fact.index, fact.power_watts)
        if fact.memory_used_bytes is not None:
            self._add(at, "gpu_memory_bytes", fact.index, float(fact.memory_used_bytes))
        if fact.memory_total_bytes is not None:
            self._limits["gpu_memory_bytes"] = fact.memory_total_bytes

    def _memory(self, at: float, fact: CgroupMemory | HostMemory | SharedMemory, job: JobView) -> None:
        if isinstance(fact, CgroupMemory):
            name, used, limit = "memory_bytes", fact.needed_bytes, fact.limit_bytes
        elif isinstance(fact, HostMemory):
            name, used, limit = "host_memory_bytes", fact.total_bytes - fact.available_bytes, fact.total_bytes
        else:
            name, used, limit = "shm_bytes", fact.size_bytes - fact.available_bytes, fact.size_bytes
        self._add(at, name, None, float(used))
        if limit is not None:
            self._limits[name] = limit

    def _network(self, at: float, fact: RdmaPortsSeen | InterfacesSeen, job: JobView) -> None:
        traffic = recent(job.network, at - _TRAFFIC_SECONDS)
        if traffic is not None:
            self._add(at, "rdma_bytes_per_second", None, traffic.rdma)
            self._add(at, "socket_bytes_per_second", None, traffic.sockets)

    def _step(self, at: float, event: StepMade, job: JobView) -> None:
        step = job.progress.steps.last
        if step is not None and step[0] != self._step_at:
            self._step_at = step[0]
            self._add(at, "step_seconds", None, step[1])

    def _loss(self, at: float, fact: Iteration | MetricsLogged, job: JobView) -> None:
        metrics = dict(fact.metrics)
        self._add(at, "loss", None, next((metrics[name] for name in _LOSSES if name in metrics), None))

    # -- reading ------------------------------------------------------------------------------------------

    def phase_seconds(self, now: float) -> dict[str, float]:
        """How long the job was in each phase, the one that it ended in apart."""
        spent = dict(self._spent)
        if self._phase and self._phase != "ended":
            spent[self._phase] = spent.get(self._phase, 0.0) + max(0.0, now - self._phase_at)
        return {phase: round(seconds, 3) for phase, seconds in spent.items()}

    def to_json(self, job: JobView) -> dict[str, Any]:
        """`diag.timeline/1`: values are those of `count` moments of `width_seconds` from `began` on (null:
        nothing was read).

        A series with many members (GPUs, ranks) is given as its lowest, mean and highest.
        """
        names: dict[str, list[int | None]] = {}
        for name, member in self._series:
            names.setdefault(name, []).append(member)
        owners = ranks_of_gpus(job)
        series = []
        for name in (name for name in UNITS if name in names):
            members = sorted(names[name], key=lambda member: -1 if member is None else member)
            if len(members) <= _MOST_DRAWN:
                series += [self._member(name, member, owners) for member in members]
            else:
                series.append(self._band(name, [member for member in members if member is not None]))
        return {
            "schema": "diag.timeline/1",
            "began": self._began,
            "width_seconds": self._width,
            "count": self._count,
            "phases": [{"phase": phase, "at": at} for at, phase in self._phases],
            "series": series,
            "limits": dict(self._limits),
        }

    def of_rank(self, rank: int, job: JobView) -> dict[str, Any]:
        """The same of one rank alone: its process, and its GPU where that is known."""
        owners = ranks_of_gpus(job)
        series = [
            self._member(name, member, owners)
            for name in UNITS
            for kind, member in self._series
            if kind == name and member is not None
            if (rank in owners.get(member, ()) if name.startswith("gpu_") else member == rank)
        ]
        return {**self.to_json(job), "series": series}

    def _member(self, name: str, member: int | None, owners: Mapping[int, Sequence[int]]) -> dict[str, Any]:
        values = self._series[(name, member)].values(self._count)
        series: dict[str, Any] = {"name": name, "unit": UNITS[name][0], "values": values}
        if member is not None and name.startswith("gpu_"):
            series |= {"gpu": member, "ranks": list(owners.get(member, ()))}
        elif member is not None:
            series["rank"] = member
        return series

    def _band(self, name: str, members: Iterable[int]) -> dict[str, Any]:
        columns = [self._series[(name, member)].values(self._count) for member in members]
        rows = [[value for value in row if value is not None] for row in zip(*columns, strict=True)]
        return {
            "name": name, "unit": UNITS[name][0], "members": len(columns),
            "low": [min(row) if row else None for row in rows],
            "values": [_short(sum(row) / len(row)) if row else None for row in rows],
            "high": [max(row) if row else None for row in rows],
        }  # fmt: skip


def _short(value: float) -> float:
    """Four digits: a drawing shows no more.

    >>> _short(123456.0), _short(0.123456)
    (123500.0, 0.1235)
    """
    return float(f"{value:.4g}")


_TAKES: Mapping[type[Observation | Event], Callable[[Timeline, float, Any, JobView], None]] = {
    ProcessTree: Timeline._tree,
    GpuSample: Timeline._gpu,
    CgroupMemory: Timeline._memory,
    HostMemory: Timeline._memory,
    SharedMemory: Timeline._memory,
    RdmaPortsSeen: Timeline._network,
    InterfacesSeen: Timeline._network,
    StepMade: Timeline._step,
    Iteration: Timeline._loss,
    MetricsLogged: Timeline._loss,
}
