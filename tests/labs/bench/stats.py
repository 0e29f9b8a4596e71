"""Medians, bootstrap intervals and the event method. Plain numbers in, plain numbers out."""

from __future__ import annotations

import bisect
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Interval", "Step", "difference", "event_losses", "interval", "judge", "quiet_windows", "ratios"]

_RESAMPLES = 2000
_SEED = 7  # the same numbers in give the same interval
_QUIET_STEPS = 20  # so many undisturbed steps around an event say how long a step takes there
_MEDIAN: Callable[[Sequence[float]], float] = statistics.median


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic and its bootstrap 95 % confidence interval."""

    low: float
    mid: float
    high: float

    def scaled(self, factor: float, shift: float = 0.0) -> Interval:
        ends = sorted((self.low * factor + shift, self.high * factor + shift))
        return Interval(ends[0], self.mid * factor + shift, ends[1])


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a training loop: wall clock at its start, and seconds; `waited` is for a core, in the run
    queue."""

    start: float
    wall: float
    cpu: float = 0.0
    waited: float = 0.0

    @property
    def end(self) -> float:
        return self.start + self.wall

    @property
    def held(self) -> float:
        """How long it took, less what it waited for a core: other users of the machine are not in it, stops
        are."""
        return self.wall - self.waited


def interval(values: Sequence[float], of: Callable[[Sequence[float]], float] = _MEDIAN) -> Interval:
    """Percentile bootstrap. One value alone is its own interval.

    >>> interval([2.0, 2.0, 2.0])
    Interval(low=2.0, mid=2.0, high=2.0)
    """
    chance = random.Random(_SEED)
    drawn = sorted(of(chance.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return Interval(drawn[int(0.025 * _RESAMPLES)], of(values), drawn[int(0.975 * _RESAMPLES) - 1])


def difference(
    values: Sequence[float], control: Sequence[float], of: Callable[[Sequence[float]], float] = _MEDIAN
) -> Interval:
    """Of the statistics of two independent samples.

    >>> difference([3.0, 3.0], [1.0, 1.0]).mid
    2.0
    """
    chance = random.Random(_SEED)
    drawn = sorted(
        of(chance.choices(values, k=len(values))) - of(chance.choices(control, k=len(control)))
        for _ in range(_RESAMPLES)
    )
    return Interval(
        drawn[int(0.025 * _RESAMPLES)], of(values) - of(control), drawn[int(0.975 * _RESAMPLES) - 1]
    )


def ratios(measured: Sequence[float], base: Sequence[float]) -> Interval:
    """Median of the ratios of pairs; the bootstrap draws pairs.

    >>> ratios([2.0, 4.0, 9.0], [1.0, 2.0, 3.0]).mid
    2.0
    """
    return interval([a / b for a, b in zip(measured, base, strict=True)])


def event_losses(
    steps: Sequence[Step], windows: Sequence[tuple[float, float]], disturbed: Sequence[tuple[float, float]]
) -> list[float]:
    """For each window, the excess of the steps that overlap it over the median of undisturbed steps near it,
    in seconds.

    `disturbed` are all windows in which anything happened. Windows at the edge of the record are left out.
    """
    starts = [step.start for step in steps]
    quiet = _undisturbed(steps, disturbed)
    losses = []
    for begin, end in windows:
        first, last = bisect.bisect_right(starts, begin) - 1, bisect.bisect_left(starts, end)
        if first < 0 or last >= len(steps):
            continue
        near = bisect.bisect_left(quiet, first)
        around = quiet[max(0, near - _QUIET_STEPS // 2) : near + _QUIET_STEPS // 2]
        if len(around) < _QUIET_STEPS // 2:
            continue
        usual = statistics.median(steps[i].held for i in around)
        losses.append(sum(step.held - usual for step in steps[first:last]))
    return losses


def quiet_windows(
    steps: Sequence[Step], disturbed: Sequence[tuple[float, float]], width: float, count: int
) -> list[tuple[float, float]]:
    """Windows of this width, at random, in which nothing happened: what the method says of nothing."""
    chance = random.Random(_SEED)
    found: list[tuple[float, float]] = []
    for _ in range(20 * count):
        begin = chance.uniform(steps[0].start, steps[-1].start)
        if len(found) < count and not any(begin < b and a < begin + width for a, b in disturbed):
            found.append((begin, begin + width))
    return found


def _undisturbed(steps: Sequence[Step], disturbed: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the steps that no window overlaps."""
    ends = [step.end for step in steps]
    touched: set[int] = set()
    for begin, end in disturbed:
        i = bisect.bisect_right(ends, begin)
        while i < len(steps) and steps[i].start < end:
            touched.add(i)
            i += 1
    return [i for i in range(len(steps)) if i not in touched]


def judge(value: Interval | float, limit: float) -> str:
    """`met` or `missed`; `unclear` where the confidence interval holds the limit.

    >>> judge(0.5, 1.0), judge(Interval(0.2, 0.5, 1.5), 1.0), judge(Interval(1.1, 1.5, 2.0), 1.0)
    ('met', 'unclear', 'missed')
    """
    low, high = (value.low, value.high) if isinstance(value, Interval) else (value, value)
    return "met" if high < limit else "missed" if low > limit else "unclear"
