"""When memory is to be read in full: whenever it has changed, so that a save's shape is known and quiet hours cost nothing.

One rank of each cgroup looks at the usage alone twice a second, which costs some microseconds; the hub says which.
"""

from __future__ import annotations

from collections.abc import Iterable

from diag.rankstate import RankState

__all__ = ["PEEK_SECONDS", "MemoryPeek", "watchers"]

PEEK_SECONDS = 0.5
_LEAST_CHANGE = 8 << 20  # of a small job; the allocator's own coming and going is less
_CHANGE_RATIO = 0.0005  # of what is in use
_SURGE = 2  # changes of that size at once, upwards: something is staged, or loaded
_READINGS_IN_A_ROW = 240  # two minutes: a save; what goes on changing after that is no save, and is read less often
_SLOW_SECONDS = 2.0


class MemoryPeek:
    """Decides from the usage alone. `told` is the usage that was last read in full."""

    def __init__(self) -> None:
        self._told: int | None = None
        self._told_at = -1e9
        self._in_a_row = 0
        self.surges = False  # the last usage that was looked at begins a steep rise
        self._rising = False

    def due(self, usage: int, now: float) -> bool:
        """Whether to read all now."""
        if self._told is None:
            self._told, self._told_at = usage, now
            return True
        change = usage - self._told
        least = max(_LEAST_CHANGE, _CHANGE_RATIO * usage)
        steep = change >= _SURGE * least
        self.surges, self._rising = steep and not self._rising, steep
        if abs(change) < least:
            self._in_a_row = max(0, self._in_a_row - 4)
            return False
        if self._in_a_row >= _READINGS_IN_A_ROW and now - self._told_at < _SLOW_SECONDS:
            return False
        self._in_a_row = min(_READINGS_IN_A_ROW, self._in_a_row + 1)
        self._told, self._told_at = usage, now
        return True


def watchers(ranks: Iterable[RankState]) -> set[int]:
    """One living rank of each cgroup."""
    first: dict[object, int] = {}
    for rank in ranks:
        if rank.alive:
            key = (rank.cgroup.path, rank.cgroup.limit_bytes) if rank.cgroup is not None else None
            first[key] = min(rank.rank, first.get(key, rank.rank))
    return set(first.values())
