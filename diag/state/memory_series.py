"""Needed memory of one limit over time, as readings show it. Pure.

Readings come when the memory changed, else seldom (`diag/agent/memory_sampler.py`): between two of them the first one
holds.
"""

from __future__ import annotations

import bisect
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_KEPT = 2048
_MOST_FITTED = 40


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """`needed`: without page cache. `peak` is the kernel's own counter of usage, page cache included, which
    only grows."""

    at: float
    needed: int
    cache: int = 0
    peak: int | None = None
    iteration: int | None = None


class MemorySeries:
    """The newest points, oldest first; a moment that is reported again by another rank is kept once."""

    def __init__(self) -> None:
        self.points: deque[MemoryPoint] = deque(maxlen=_KEPT)
        self.limit: int | None = None

    def add(self, point: MemoryPoint, limit: int | None) -> None:
        self.limit = limit
        last = self.points[-1] if self.points else None
        if last is not None and point.at - last.at < 0.1 and point.needed == last.needed:
            return
        self.points.append(point)

    def between(self, since: float, until: float) -> list[MemoryPoint]:
        """Points of [since, until]."""
        points = list(self.points)
        first = bisect.bisect_left(points, since, key=lambda point: point.at)
        return points[first : bisect.bisect_right(points, until, key=lambda point: point.at)]

    def at(self, moment: float) -> MemoryPoint | None:
        """The reading that held at a moment: the last one before it."""
        points = list(self.points)
        index = bisect.bisect_right(points, moment, key=lambda point: point.at)
        return points[index - 1] if index else None


def slope(points: Sequence[MemoryPoint]) -> float:
    """Bytes a second: the median of the slopes of all pairs (Theil-Sen), which a freak reading does not bend.

    >>> slope([MemoryPoint(0, 10), MemoryPoint(1, 12), MemoryPoint(2, 99), MemoryPoint(3, 16)])
    2.0
    """
    step = max(1, len(points) // _MOST_FITTED)
    some = points[::step]
    slopes = [
        (b.needed - a.needed) / (b.at - a.at)
        for i, a in enumerate(some)
        for b in some[i + 1 :]
        if b.at > a.at
    ]
    return statistics.median(slopes) if slopes else 0.0
