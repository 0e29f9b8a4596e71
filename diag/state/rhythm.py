"""How often something comes, by its own history, and how late the next is."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

_KEPT = 64
_LEAST = 3


class Rhythm:
    """Given each moment at which it came."""

    def __init__(self, gaps: Iterable[float] = (), last: float | None = None) -> None:
        self.gaps: deque[float] = deque(gaps, maxlen=_KEPT)
        self.last = last

    def came(self, at: float, *, counts: bool = True) -> None:
        """`counts`: the time since the last is its own; False where diag looked away."""
        if self.last is not None and counts:
            self.gaps.append(at - self.last)
        self.last = at

    def median(self) -> float | None:
        return statistics.median(self.gaps) if len(self.gaps) >= _LEAST else None

    def p95(self) -> float | None:
        """95th percentile of the gaps; None before the third."""
        if len(self.gaps) < _LEAST:
            return None
        return statistics.quantiles(self.gaps, n=20, method="inclusive")[-1]

    def overdue(self, now: float) -> float | None:
        """Seconds beyond the 95th percentile in which the next has not come; 0 before that, None where the history is
        too short to say."""
        usual = self.p95()
        return None if usual is None or self.last is None else max(0.0, now - self.last - usual)

    def backs_off(self) -> bool:
        """Each gap is much longer than the one before: tries, not steps."""
        gaps = list(self.gaps)[-6:]
        return len(gaps) >= _LEAST and all(
            later >= 1.4 * earlier > 0 for earlier, later in itertools.pairwise(gaps)
        )


def is_clockwork(gaps: Sequence[float], seconds: float, ratio: float) -> bool:
    """They come by a timer: each gap is the same round number of half seconds, as near as a sleep is to what it was
    asked for. Steps take what they take."""
    gaps = [gap for gap in gaps if gap > 0]
    if len(gaps) < _LEAST:
        return False
    period = round(2 * statistics.median(gaps)) / 2
    off = sorted(abs(gap - period) for gap in gaps)
    nearly = seconds + ratio * period
    # One in four may come late: a timer's line waits for its turn too.
    return period > 0 and off[len(off) // 2] <= nearly and off[(3 * len(off) - 1) // 4] <= 4 * nearly
