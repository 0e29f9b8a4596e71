"""Whether a job's steps have become slower than they were, for good: given laps (some seconds of steps each).
Pure.

A drop is reported where these hold for the last 6, 12, 24, 48 or 96 laps: their median is 25 % above that of all
laps before (30 at least, twice as many); it is 25 % above what as many laps in a row came to before, one in
ten of these left out, and five of their spreads, so that a rhythm of the job's own (long sequences first, a
neighbour now and then) is no news; the two sets of laps differ by Fisher's exact test beyond one in ten
million; of the last six most are slow still; and the slow stretch has lasted a minute, longer where little is
lost.

Measured (`python -m tests.core.test_pace`, fixed seeds) on 10,008 healthy series of twelve kinds, 5,004
hours: one drop that matters and three that do not, all in noise that lasts for minutes. Steps that get 1.5, 2
and 5 times as long are reported after 60-80 s.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, replace

from diag.state.exact import fisher

LEAST_RATIO = 1.25  # ours: below that the loss is within what a change of data or of neighbours does
_WINDOWS = (6, 12, 24, 48, 96)
_LEAST_SECONDS = 60.0
# Ours: 60 s at half the speed more, 120 s at a quarter more; what is over sooner does not matter.
_LOST_SECONDS = 30.0
_LASTS_SECONDS = 300.0
_WARM_LAPS = 3  # caches, autotuning, the allocator's growth
_LEAST_BEFORE = 30
_FALSE_ALARM = 1e-7  # at one look; there are 720 a hour, of which some tens are independent
_SPREADS = 5  # of what as many laps in a row came to, by the median of deviations: noise that lasts for minutes is noise
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

    @property
    def matters(self) -> bool:
        """Nearly half as slow again, or less for long: noise that lasts for minutes reaches a third for two
        of them."""
        return self.ratio >= 1.45 or self.seconds >= _LASTS_SECONDS


class Pace:
    """`drop` is the one that lasts now."""

    def __init__(self) -> None:
        self.drop: Drop | None = None
        self.laps = 0  # how many were taken
        self._before: deque[Lap] = deque(maxlen=_KEPT)  # all, or those before the drop
        self._rolling: dict[int, deque[float]] = {size: deque(maxlen=_KEPT) for size in _WINDOWS}  # medians
        self._after: list[Lap] = []  # those since the drop began
        self._usual = 0.0  # about the median of all, renewed now and then: most laps are far from any drop

    def lap(self, lap: Lap) -> None:
        self.laps += 1
        if self.laps <= _WARM_LAPS:
            return
        if self.drop is not None:
            self._go_on(self.drop, lap)
            return
        self._before.append(lap)
        seconds = [self._before[index].seconds for index in range(-min(_WINDOWS[-1], len(self._before)), 0)]
        for size, medians in self._rolling.items():
            if len(seconds) >= size:
                medians.append(sorted(seconds[-size:])[size // 2])
        if len(self._before) % 16 == 0 or not self._usual:
            self._usual = statistics.median(item.seconds for item in self._before)
        for size in _WINDOWS:
            if len(self._before) < size + max(_LEAST_BEFORE, 2 * size):
                return
            if self._rolling[size][-1] < 1.1 * self._usual:
                continue
            seen = self._seen(size)
            if seen is not None:
                self._open(*seen)
                return

    def _seen(self, size: int) -> tuple[int, float] | None:
        """Which lap of `_before` was the first of a drop that the last `size` laps show, and the usual
        seconds a step before."""
        recent = self._rolling[size][-1]
        laps = list(self._before)
        last, before = laps[-size:], laps[:-size]
        usual = statistics.median(item.seconds for item in before)
        if recent < LEAST_RATIO * usual:
            return None
        rolling = sorted(list(self._rolling[size])[:-size])
        if not rolling or recent < LEAST_RATIO * rolling[int(0.9 * (len(rolling) - 1))]:
            return None
        middle = rolling[len(rolling) // 2]
        if recent < middle + _SPREADS * 1.4826 * statistics.median(abs(value - middle) for value in rolling):
            return None
        slow = math.sqrt(LEAST_RATIO) * usual
        if sum(item.seconds > slow for item in laps[-6:]) < 4:
            return None
        fast_last, fast_before = (sum(item.seconds <= slow for item in part) for part in (last, before))
        if fisher(fast_last, len(last), fast_before, len(before)) >= _FALSE_ALARM:
            return None
        first = _first_slow([item.seconds > slow for item in laps], size)
        lasted = sum(item.duration for item in laps[first:])
        ratio = statistics.median(item.seconds for item in laps[first:]) / usual
        if len(laps) - first < _WINDOWS[0] or ratio < LEAST_RATIO:
            return None
        return (first, usual) if lasted >= max(_LEAST_SECONDS, _LOST_SECONDS / (ratio - 1)) else None

    def _open(self, first: int, usual: float) -> None:
        laps = list(self._before)
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
        steps, seconds = drop.steps + lap.steps, drop.seconds + lap.duration
        self.drop = replace(drop, after=after, steps=steps, seconds=seconds)


def _first_slow(slow: list[bool], size: int) -> int:
    """Where the slow stretch at the end begins: three of four are slow from there on."""
    first = len(slow) - size
    while first < len(slow) - 4 and (not slow[first] or sum(slow[first : first + 4]) < 3):
        first += 1
    while first > _LEAST_BEFORE and slow[first - 1] and slow[first - 2]:
        first -= 1
    return first
