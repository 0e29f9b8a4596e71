"""Which ranks get too little of a core: their main threads are ready to run, and others run."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from diag.model import Evidence, numbered
from diag.model.observations import ProcessTree
from diag.text.units import format_ratio, format_seconds

_WINDOW_SECONDS, _LEAST_SECONDS = 60.0, 15.0
# Ours: below that a rank loses less than what makes it a straggler.
_STARVED = 0.3
# Of what it asks for, a rank that is well served loses no more; little is not counted.
_SERVED, _LITTLE = 0.2, 0.02
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
    since: float = 0.0

    def __str__(self) -> str:
        text = (
            f"its main thread had {format_ratio(self.cpu_ratio)} of a core for {format_seconds(self.seconds)}"
        )
        if self.ready_ratio is not None:
            text += f", was ready to run without one {format_ratio(self.ready_ratio)} of the time"
        if self.preemptions >= 1:
            text += f" and was preempted {self.preemptions:.0f} times a second"
        if self.cores:
            text += f"; it may use core{'' if self.cores.isdigit() else 's'} {self.cores}"
        return text + self._others()

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
        self._since: dict[int, float] = {}  # from when on a rank that is starved was

    def observe(self, at: float, fact: ProcessTree) -> None:
        if fact.rank is None or fact.main_thread_cpu_seconds is None:
            return
        kept = self._readings.setdefault(fact.rank, deque(maxlen=_MOST_KEPT))
        if kept and kept[-1][1].main.pid != fact.main.pid:
            kept.clear()
            self._since.pop(fact.rank, None)
            self._beside.pop(fact.rank, None)
        kept.append((at, fact))
        if fact.beside:
            self._beside[fact.rank] = (at, fact.beside)
        while at - kept[0][0] > _WINDOW_SECONDS:
            kept.popleft()
        if not self.starved((fact.rank,)):
            self._since.pop(fact.rank, None)
        elif fact.rank not in self._since:
            self._since[fact.rank] = _began(list(kept))

    def pids(self, rank: int) -> frozenset[int]:
        """The rank's own process and those below it, as last read."""
        kept = self._readings.get(rank)
        return (
            frozenset(one.pid for one in (kept[-1][1].main, *kept[-1][1].children)) if kept else frozenset()
        )

    def starved(self, ranks: Collection[int]) -> tuple[Starved, ...]:
        """Of these ranks, those that get too little."""
        return tuple(found for rank in sorted(ranks) if (found := self._of(rank)) is not None)

    def knows(self, rank: int) -> bool:
        """Its main thread was read for long enough."""
        kept = self._readings.get(rank)
        return kept is not None and kept[-1][0] - kept[0][0] >= _LEAST_SECONDS

    def served(self, rank: int) -> bool:
        """Its main thread gets what it asks for, be that much or little."""
        kept = self._readings.get(rank)
        if not kept or not self.knows(rank):
            return False
        share = _share(kept[0], kept[-1])
        if share.ready is None:
            return not share.is_starved
        return share.ready <= max(_LITTLE, _SERVED * (share.cpu + share.ready))

    def _of(self, rank: int) -> Starved | None:
        kept = self._readings.get(rank)
        if not kept or not self.knows(rank) or not _share(kept[0], kept[-1]).is_starved:
            return None
        since, last = self._since.get(rank, kept[0][0]), kept[-1]
        # In figures what it gets since it was starved, as soon as that is long enough.
        first = next(reading for reading in (*kept, last) if reading[0] >= since)
        if last[0] - first[0] < _LEAST_SECONDS:
            first = kept[0]
        share, beside = _share(first, last), self._beside.get(rank, (0.0, ()))[1]
        return Starved(
            rank, last[0], last[0] - first[0], share.cpu, share.ready, share.preemptions, last[1].cores, beside, since
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Share:
    """Of a core, between two readings. `preemptions` and `switches` (its own) are by second."""

    cpu: float
    ready: float | None
    preemptions: float
    switches: float

    @property
    def is_starved(self) -> bool:
        if self.ready is None:
            # One that waits has little CPU as well, but gives its core away by itself.
            return self.preemptions >= max(_PREEMPTIONS, self.switches) and self.cpu <= _MOST_CPU
        return self.ready >= _STARVED


_Reading = tuple[float, ProcessTree]


def _share(first: _Reading, last: _Reading) -> _Share:
    (began, before), (at, after) = first, last
    seconds = at - began
    return _Share(
        _rate(before.main_thread_cpu_seconds, after.main_thread_cpu_seconds, seconds) or 0.0,
        _rate(before.run_delay_seconds, after.run_delay_seconds, seconds),
        _rate(before.preemptions, after.preemptions, seconds) or 0.0,
        _rate(before.switches, after.switches, seconds) or 0.0,
    )


def _began(kept: list[_Reading]) -> float:
    """The first of the readings from which on it got too little."""
    since = kept[-1][0]
    for first, last in pairwise(reversed(kept)):
        if first[0] > last[0] and not _share(last, first).is_starved:
            break
        since = last[0]
    return since


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else max(0.0, after - before) / seconds
