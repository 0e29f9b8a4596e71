"""Whether a job's steps have become slower than they were, for good: told laps (some seconds of steps each). Pure.

A drop is said where four things hold for the last 6, 12, 24, 48 or 96 laps, which last a minute or more: their median is 25 % above
that of all laps before (30 at least, twice as many); it is 25 % above what as many laps in a row came to before, one in ten of
these left out, so that a rhythm of the job's own (long sequences first, a neighbour each hour) is no news; the two sets of laps
differ by Fisher's exact test beyond one in ten million; and of the last six most are slow still.

Measured by tests/core/test_pace.py (fixed seeds): 10,000 healthy series of nine kinds (heavy tails, saves that nothing tells of,
drift of 5 %, hiccups, sawteeth of sorted lengths, a neighbour each hour, ...), see there for hours and alarms.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from diag.exact import fisher

__all__ = ["Drop", "Lap", "Pace"]

LEAST_RATIO = 1.25  # ours: below that the loss is within what a change of data or of neighbours does
_WINDOWS = (6, 12, 24, 48, 96)
_LEAST_SECONDS = 60.0
_WARM_LAPS = 3  # caches, autotuning, the allocator's growth
_LEAST_BEFORE = 30
_FALSE_ALARM = 1e-7  # at one look; there are 720 a hour, of which some tens are independent
_KEPT = 2048  # three hours of five seconds


@dataclass(frozen=True, slots=True)
class Lap:
    """Undisturbed steps up to `iteration`; `seconds` each."""

    began: float
    at: float
    iteration: int
    steps: int
    seconds: float

    @property
    def duration(self) -> float:
        return self.steps * self.seconds


@dataclass(frozen=True, slots=True)
class Drop:
    """Slower since `since` (the end of `iteration`): `before` and `after` are seconds a step."""

    since: float
    iteration: int
    before: float
    after: float
    steps: int
    seconds: float  # that these steps took

    @property
    def ratio(self) -> float:
        return self.after / self.before


class Pace:
    """`drop` is the one that lasts now."""

    def __init__(self) -> None:
        self.drop: Drop | None = None
        self.laps = 0
        self._before: deque[Lap] = deque(maxlen=_KEPT)
        self._rolling: dict[int, deque[float]] = {size: deque(maxlen=_KEPT) for size in _WINDOWS}
        self._after: list[Lap] = []

    def lap(self, lap: Lap) -> None:
        self.laps += 1
        if self.laps <= _WARM_LAPS:
            return
        if self.drop is not None:
            self._go_on(self.drop, lap)
            return
        self._before.append(lap)
        for size, medians in self._rolling.items():
            if len(self._before) >= size:
                medians.append(statistics.median(item.seconds for item in _last(self._before, size)))
        for size in _WINDOWS:
            if len(self._before) < size + max(_LEAST_BEFORE, 2 * size):
                return
            if self._is_drop(size):
                self._open(size)
                return

    def _is_drop(self, size: int) -> bool:
        recent = self._rolling[size][-1]
        laps = list(self._before)
        last, before = laps[-size:], laps[:-size]
        usual = statistics.median(item.seconds for item in before)
        if recent < LEAST_RATIO * usual or sum(item.duration for item in last) < _LEAST_SECONDS:
            return False
        rolling = sorted(list(self._rolling[size])[:-size])
        if not rolling or recent < LEAST_RATIO * rolling[int(0.9 * (len(rolling) - 1))]:
            return False
        slow = math.sqrt(LEAST_RATIO) * usual
        if sum(item.seconds > slow for item in laps[-6:]) < 4:
            return False
        fast_last, fast_before = (sum(item.seconds <= slow for item in part) for part in (last, before))
        return fisher(fast_last, len(last), fast_before, len(before)) < _FALSE_ALARM

    def _open(self, size: int) -> None:
        """The drop began where the laps, counted from its window's middle back, are slow no more."""
        laps = list(self._before)
        usual = statistics.median(item.seconds for item in laps[:-size])
        slow = math.sqrt(LEAST_RATIO) * usual
        first = len(laps) - size
        while first < len(laps) - 4 and sum(item.seconds > slow for item in laps[first : first + 4]) < 3:
            first += 1
        while first > _LEAST_BEFORE and all(item.seconds > slow for item in laps[first - 2 : first]):
            first -= 1
        self._after = laps[first:]
        for _ in self._after:
            self._before.pop()
            for medians in self._rolling.values():
                if medians:
                    medians.pop()
        self.drop = self._made(laps[first - 1], usual)

    def _made(self, last_before: Lap, usual: float) -> Drop:
        after = statistics.median(item.seconds for item in self._after)
        steps, seconds = sum(item.steps for item in self._after), sum(item.duration for item in self._after)
        return Drop(last_before.at, last_before.iteration, usual, after, steps, seconds)

    def _go_on(self, drop: Drop, lap: Lap) -> None:
        self._after.append(lap)
        recent = self._after[-6:]
        over = statistics.median(item.seconds for item in recent) < math.sqrt(LEAST_RATIO) * drop.before
        if over and sum(item.duration for item in recent) >= _LEAST_SECONDS / 2:
            self.drop, self._after = None, []
            return
        del self._after[:-_KEPT]
        after = statistics.median(item.seconds for item in self._after[-96:])
        self.drop = Drop(drop.since, drop.iteration, drop.before, after, drop.steps + lap.steps, drop.seconds + lap.duration)


def _last(laps: deque[Lap], size: int) -> list[Lap]:
    return [laps[index] for index in range(-size, 0)]
