"""Nothing is killed, yet all processes wait for memory: a cgroup above memory.high, or at its limit with little
to take back."""

from __future__ import annotations

from dataclasses import dataclass

from diag.detectors.memory.causes import is_full
from diag.model.observations import CgroupMemory
from diag.state.rank_view import RankView
from diag.state.view import JobView

_RATIO = 0.2  # of the last 10 s: the machine above memory.high showed 0.35; page cache that is taken back stays below 0.05
_OVER_HIGH = (
    "mem_cgroup_handle_over_high"  # Linux 6.1 and 6.18, cgroup v2 above memory.high: state D, this wchan
)
_SECONDS = 10.0  # held so long over readings: one full reading of a burst is none


@dataclass(frozen=True, slots=True)
class Stall:
    group: CgroupMemory
    ranks: tuple[int, ...]
    since: float
    ratio: float | None
    high_bytes: int | None
    seen: str


@dataclass(slots=True)
class _Watched:
    since: float
    at: float
    events: int
    group: CgroupMemory


class Stalls:
    """Handed memory cgroups."""

    def __init__(self) -> None:
        self._watched: dict[int | None, _Watched] = {}
        self._last: dict[int | None, tuple[float, int]] = {}

    def observe(self, at: float, fact: CgroupMemory) -> None:
        events = fact.high_events + fact.max_events
        before = self._last.get(fact.rank)
        self._last[fact.rank] = (at, events)
        if before is None:
            return
        if events > before[1] and (fact.pressure_full_ratio or 0.0) >= _RATIO:
            known = self._watched.get(fact.rank)
            since = known.since if known is not None else before[0]
            self._watched[fact.rank] = _Watched(since, at, events, fact)
        else:
            self._watched.pop(fact.rank, None)

    def decide(self, now: float, job: JobView) -> Stall | None:
        if job.returncode is not None:
            return None
        alive = {rank.rank for rank in job.alive_ranks()}
        held = {
            rank: one
            for rank, one in self._watched.items()
            if rank in alive and one.at - one.since >= _SECONDS and now - one.at <= 30.0
        }
        ranks = tuple(sorted(rank for rank in held if rank is not None))
        if not ranks:
            return None
        group = held[ranks[0]].group
        caught = next((rank for rank in ranks if throttled(job.ranks[rank])), None)
        seen = f"; rank {caught} in state D, {_OVER_HIGH}" if caught is not None else ""
        since = min(held[rank].since for rank in ranks)
        return Stall(group, ranks, since, group.pressure_full_ratio, _high(group), seen)


def throttled(rank: RankView) -> bool:
    """Whether the kernel holds it up above memory.high."""
    return rank.tree is not None and rank.tree.main.wchan == _OVER_HIGH


def waits_for(rank: RankView) -> str:
    """Its cgroup is full, and its tasks stood still for want of memory in much of the last 10 s: memory_high
    or memory_reclaim, by the limit. Between two delays above memory.high a rank runs, so that one reading of
    its state may show neither."""
    group = rank.cgroup
    if throttled(rank):
        return "memory_high"
    if group is None or (group.pressure_full_ratio or 0.0) < _RATIO:
        return ""
    if _high(group) is not None:
        return "memory_high"
    return "memory_reclaim" if is_full(group) else ""


def _high(group: CgroupMemory) -> int | None:
    highs = ((level.high_bytes, level.usage_bytes) for level in group.levels if level.high_bytes is not None)
    return min((high for high, usage in highs if usage >= 0.95 * high), default=None)
