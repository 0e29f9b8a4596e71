"""How the resident memory of the job's processes grew over the last minute: which grew, which vanished. Judges
nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from diag.model.observations import KernelOomKill, ProcessSample, ProcessTree

_WINDOW_SECONDS = 60.0
_RECENT_SECONDS = 10.0
_RECENT_SHARE = 0.3
_APART_SECONDS = 4.0  # between two kept readings: a minute of them is enough to see growth
_KEPT_GONE = 64
_LEAST_GROWTH = 16 << 20


@dataclass(slots=True)
class Seen:
    """One process: a rank's own (`main`) or one below it."""

    rank: int
    pid: int
    start_ticks: int
    name: str
    main: bool
    at: float
    rss_bytes: int
    kept: deque[tuple[float, int]] = field(
        default_factory=lambda: deque(maxlen=int(_WINDOW_SECONDS / _APART_SECONDS) + 1)
    )
    gone_at: float | None = None

    def grew(self, at: float, window: float) -> tuple[int, float]:
        """Bytes more than at the oldest reading of the window, and over how many seconds."""
        since, first = next(
            ((when, size) for when, size in self.kept if when >= at - window), (self.at, self.rss_bytes)
        )
        return self.rss_bytes - first, max(0.0, self.at - since)


@dataclass(frozen=True, slots=True)
class Holders:
    """The job's memory at one moment, copied: what comes later does not change it."""

    at: float
    grower: tuple[int, int, str, bool, int, float] | None  # rank, pid, name, main, bytes, seconds
    children: tuple[tuple[int, int], ...]  # of each rank: how many processes below it, their bytes
    total_bytes: int
    pinned_bytes: int
    # what each rank grew with all below it, over the same time as the grower
    by_rank: tuple[tuple[int, int], ...] = ()


class Growth:
    """Handed process trees."""

    def __init__(self) -> None:
        self._alive: dict[int, dict[int, Seen]] = {}  # by rank, by pid
        self._gone: deque[Seen] = deque(maxlen=_KEPT_GONE)
        self._pinned: dict[int, int] = {}

    def observe(self, at: float, fact: ProcessTree) -> None:
        if fact.rank is None:
            return
        known = self._alive.setdefault(fact.rank, {})
        self._pinned[fact.rank] = fact.pinned_bytes or 0
        now: dict[int, Seen] = {}
        for process in (fact.main, *fact.children):
            if process.state in "ZX":
                continue  # it is dead, and holds nothing: its parent has not asked yet
            old = known.get(process.pid)
            if old is None or old.start_ticks != process.start_ticks:
                main = process.pid == fact.main.pid
                old = Seen(fact.rank, process.pid, process.start_ticks, process.comm, main, at, 0)
            _note(old, at, process)
            now[process.pid] = old
        for pid, seen in known.items():
            if now.get(pid) is not seen:
                seen.gone_at = at
                self._gone.append(seen)
        self._alive[fact.rank] = now

    def process(self, pid: int, name: str = "") -> Seen | None:
        """A process of the job, living or lately gone, that has this pid; with a name, only if it is called
        so."""
        for seen in (
            *(one for group in self._alive.values() if (one := group.get(pid))),
            *reversed(self._gone),
        ):
            if seen.pid == pid and (not name or seen.name == name):
                return seen
        return None

    def like(self, kill: KernelOomKill, at: float) -> Seen | None:
        """Where the kernel's pid is of another namespace: the process of that name, gone about then, of the
        nearest size."""
        size = held_bytes(kill)
        alike = [
            seen for seen in self._gone if seen.name == kill.comm and abs((seen.gone_at or 0.0) - at) <= 10.0
        ]
        return min(alike, key=lambda seen: abs(seen.rss_bytes - size), default=None)

    def holders(self, at: float, kill: KernelOomKill | None = None) -> Holders:
        """What held memory at that moment. The kernel's line is newer than the last reading of the process
        that it killed."""
        killed = self.process(kill.pid, kill.comm) if kill is not None else None
        gone = [seen for seen in self._gone if seen.gone_at is not None and 0.0 <= at - seen.at <= 10.0]
        everyone = [seen for group in self._alive.values() for seen in group.values()]
        unseen = max(0, held_bytes(kill) - killed.rss_bytes) if killed is not None and kill is not None else 0

        def most(window: float) -> tuple[int, float, Seen] | None:
            all_grown = []
            for seen in (*everyone, *gone):
                grown, seconds = seen.grew(at, window)
                if seen is killed:
                    grown, seconds = grown + unseen, seconds + max(0.0, at - seen.at)
                if grown >= _LEAST_GROWTH:
                    all_grown.append((grown, seconds, seen))
            return max(all_grown, key=lambda one: one[0], default=None)

        first, recent, window = most(_WINDOW_SECONDS), most(_RECENT_SECONDS), _WINDOW_SECONDS
        if first is not None and recent is not None and recent[0] >= _RECENT_SHARE * first[0]:
            # what grew when it happened, not a model that was loaded before
            first, window = (recent, _RECENT_SECONDS)
        grower = None
        if first is not None:
            grown, seconds, seen = first
            grower = (seen.rank, seen.pid, seen.name, seen.main, grown, seconds)
        by_rank: dict[int, int] = {}
        for seen in (*everyone, *gone):
            grown = seen.grew(at, window)[0] + (unseen if seen is killed else 0)
            by_rank[seen.rank] = by_rank.get(seen.rank, 0) + max(0, grown)
        children = []
        for group in self._alive.values():
            below = [seen.rss_bytes for seen in group.values() if not seen.main]
            children.append((len(below), sum(below)))
        return Holders(
            at,
            grower,
            tuple(children),
            sum(seen.rss_bytes for seen in everyone),
            sum(self._pinned.values()),
            tuple(sorted(by_rank.items())),
        )

    def vanished(self, at: float) -> list[Seen]:
        """Processes below ranks that were seen shortly before that moment and not after it."""
        return [
            seen
            for seen in self._gone
            if not seen.main
            and seen.gone_at is not None
            and seen.at <= at + 1.0
            and abs(seen.gone_at - at) <= 10.0
        ]

    def known_pids(self) -> frozenset[int]:
        return frozenset(pid for group in self._alive.values() for pid in group) | {
            seen.pid for seen in self._gone
        }


def held_bytes(kill: KernelOomKill) -> int:
    """What the killed process held, by the kernel's line."""
    return kill.anon_bytes + kill.file_bytes + kill.shmem_bytes


def _note(seen: Seen, at: float, process: ProcessSample) -> None:
    if not seen.kept or at - seen.kept[-1][0] >= _APART_SECONDS:
        seen.kept.append((at, process.rss_bytes))
    seen.at, seen.rss_bytes, seen.name = at, process.rss_bytes, process.comm
