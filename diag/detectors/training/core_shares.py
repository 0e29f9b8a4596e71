"""Which ranks get too little of a core: their main threads are ready to run, and others run."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from diag.model import Evidence, numbered
from diag.model.observations import ProcessTree
from diag.text.units import format_ratio, format_seconds

_WINDOW_SECONDS, _LEAST_SECONDS = 60.0, 15.0
# Ours: below that a rank loses less than what makes it a straggler.
_STARVED = 0.3
# Where the kernel has no schedstat. H200, a rank with six busy loops on its one core: preempted 33-52 times a second,
# 2-4 switches of its own, 0.15 of a core. Its healthy peer: 0.5-2.6 and 64-180, 1.0 of a core.
_PREEMPTIONS, _MOST_CPU = 10.0, 0.6
_MOST_SHOWN = 3
_MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class Starved:
    """A main thread that was ready and without a core, on average over `seconds`. `ready_ratio`: of the time;
    None where the kernel does not count it."""

    rank: int
    at: float
    seconds: float
    cpu_ratio: float
    ready_ratio: float | None
    preemptions: float  # a second
    cores: str
    beside: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        ready = (
            ""
            if self.ready_ratio is None
            else f", was ready without one {format_ratio(self.ready_ratio)} of the time"
        )
        preempted = (
            f" and was preempted {self.preemptions:.0f} times a second" if self.preemptions >= 1 else ""
        )
        place = (
            f"; it may use core {self.cores}" if self.cores.isdigit() else f"; it may use cores {self.cores}"
        )
        return (
            f"its main thread had {format_ratio(self.cpu_ratio)} of a core for {format_seconds(self.seconds)}"
            f"{ready}{preempted}{place if self.cores else ''}{self._others()}"
        )

    def _others(self) -> str:
        if not self.beside:
            return ""
        shown = ", ".join(f"pid {pid} (`{command}`)" for pid, command in self.beside[:_MOST_SHOWN])
        more = len(self.beside) - _MOST_SHOWN
        left = numbered(f" and {more} [more|more]", more) if more > 0 else ""
        return f", where {shown}{left} {'runs' if len(self.beside) == 1 else 'run'} too"

    def evidence(self) -> Evidence:
        return Evidence("proc", str(self), self.at, self.rank)


class CoreShares:
    """Keeps a minute of readings of each rank's main thread."""

    listens = (ProcessTree,)

    def __init__(self) -> None:
        self._readings: dict[int, deque[tuple[float, ProcessTree]]] = {}
        self._beside: dict[int, tuple[float, tuple[tuple[int, str], ...]]] = {}

    def observe(self, at: float, fact: ProcessTree) -> None:
        if fact.rank is None or fact.main_thread_cpu_seconds is None:
            return
        kept = self._readings.setdefault(fact.rank, deque(maxlen=_MOST_KEPT))
        if kept and kept[-1][1].main.pid != fact.main.pid:
            kept.clear()
            self._beside.pop(fact.rank, None)
        kept.append((at, fact))
        if fact.beside:
            self._beside[fact.rank] = (at, fact.beside)
        while at - kept[0][0] > _WINDOW_SECONDS:
            kept.popleft()

    def pids(self, rank: int) -> frozenset[int]:
        """The rank's own process and those below it, as last read."""
        kept = self._readings.get(rank)
        return (
            frozenset((kept[-1][1].main.pid, *(one.pid for one in kept[-1][1].children)))
            if kept
            else frozenset()
        )

    def starved(self, ranks: Collection[int]) -> tuple[Starved, ...]:
        """Of these ranks, those that get too little."""
        return tuple(found for rank in sorted(ranks) if (found := self._of(rank)) is not None)

    def _of(self, rank: int) -> Starved | None:
        kept = self._readings.get(rank)
        if not kept or kept[-1][0] - kept[0][0] < _LEAST_SECONDS:
            return None
        (began, first), (at, last) = kept[0], kept[-1]
        seconds = at - began
        cpu = ((last.main_thread_cpu_seconds or 0.0) - (first.main_thread_cpu_seconds or 0.0)) / seconds
        ready = _rate(first.run_delay_seconds, last.run_delay_seconds, seconds)
        preemptions = _rate(first.preemptions, last.preemptions, seconds) or 0.0
        switches = _rate(first.switches, last.switches, seconds) or 0.0
        if ready is None:
            # One that waits has little CPU as well, but gives its core away by itself.
            if preemptions < max(_PREEMPTIONS, switches) or cpu > _MOST_CPU:
                return None
        elif ready < _STARVED:
            return None
        beside = self._beside.get(rank, (0.0, ()))[1]
        return Starved(rank, at, seconds, cpu, ready, preemptions, last.cores, beside)


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else max(0.0, after - before) / seconds
