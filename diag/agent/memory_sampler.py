"""When memory is to be read in full: whenever it has changed, so that a save's shape is known and quiet hours
cost nothing.

One rank of each cgroup reads the needed memory alone twice a second, which costs a part of a full reading;
the hub says which.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.sources.host import cgroup

if TYPE_CHECKING:  # one such process beside each rank: what the hub alone needs is not in it
    from diag.state.rank_view import RankView

_SECONDS, _NEAR_SECONDS = 0.5, 0.15
_NEAR = 0.7  # of the limit: a rise that has come so far is read more often
_LEAST_CHANGE = 8 << 20  # of a small job; the allocator's own coming and going is less
_CHANGE_RATIO = 0.0005  # of what is needed
_SURGE = 2  # changes of that size at once, upwards: something is staged, or loaded
# a minute or two: a save; what goes on changing after that is no save, and is read less often
_READINGS_IN_A_ROW = 240
_SLOW_SECONDS = 2.0
_UNWATCHED_SECONDS = 3600.0  # it is woken


class MemoryPeek:
    """Decides from the needed memory alone. `seconds` is the time until the next look."""

    def __init__(self) -> None:
        self._read: int | None = None
        self._read_at = -1e9
        self._in_a_row = 0
        self._rising = False
        self.surges = False  # the last look saw the beginning of a steep rise
        self.seconds = _SECONDS

    def due(self, needed: int, limit: int | None, now: float) -> bool:
        """Whether to read all now."""
        if self._read is None:
            self._read, self._read_at = needed, now
            return True
        change = needed - self._read
        least = max(_LEAST_CHANGE, _CHANGE_RATIO * needed)
        steep = change >= _SURGE * least
        self.surges, self._rising = steep and not self._rising, steep
        if abs(change) < least:
            self._in_a_row = max(0, self._in_a_row - 4)
            self.seconds = _SECONDS
            return False
        busy = self._in_a_row >= _READINGS_IN_A_ROW
        near = limit is not None and needed > _NEAR * limit
        self.seconds = _NEAR_SECONDS if change > 0 and near and not busy else _SECONDS
        if busy and now - self._read_at < _SLOW_SECONDS:
            return False
        self._in_a_row = min(_READINGS_IN_A_ROW, self._in_a_row + 1)
        self._read, self._read_at = needed, now
        return True


class MemorySampler(RankSampler):
    """For the ranks of its cgroup: readings whenever its memory changes, and a stack where a rise begins, to
    tell a save."""

    name = what = "memory"
    sources = (cgroup.SOURCE,)
    woken_by = ("memory",)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._peek = MemoryPeek()

    def sample(self) -> None:
        memory = self.rank.memory
        needed = memory.needed() if self.rank.watches_memory else None
        if needed is not None and self._peek.due(*needed, time.monotonic()):
            memory.read_cgroup()
            if self._peek.surges:
                self.rank.wake("surge")

    def period(self, cpu: float, wall: float) -> float:
        return wall + self._peek.seconds if self.rank.watches_memory else _UNWATCHED_SECONDS


def watchers(ranks: Iterable[RankView]) -> set[int]:
    """One living rank of each cgroup."""
    first: dict[object, int] = {}
    for rank in ranks:
        if rank.alive:
            key = (rank.cgroup.path, rank.cgroup.limit_bytes) if rank.cgroup is not None else None
            first[key] = min(rank.rank, first.get(key, rank.rank))
    return set(first.values())
