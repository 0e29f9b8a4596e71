"""Fisher's exact test: whether two sets of yes and no were drawn alike. scipy's would add 100 MB for five
lines."""

from __future__ import annotations

import math


def fisher(few: int, of_few: int, many: int, of_many: int) -> float:
    """One-sided: the chance of `few` or fewer among the first, were both drawn alike."""
    total, hits = of_few + of_many, few + many
    ways = math.comb(total, hits)
    lowest = max(0, hits - of_many)
    return sum(math.comb(of_few, k) * math.comb(of_many, hits - k) for k in range(lowest, few + 1)) / ways
