"""Which limit a kill for memory met: the rank's own cgroup, a parent's, or the host. Facts in, one answer
out."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from diag.detectors.memory.growth import Growth, Holders, Seen
from diag.model.observations import CgroupLevel, CgroupMemory, HostMemory, KernelOomKill
from diag.state.rank_view import RankView
from diag.state.view import JobView

NEAR_SECONDS = 10.0  # between a counter that rose, the kernel's own line, and the death that belongs to them
# of a limit: the kernel kills at the limit, and what the process held is given back before the next reading
_FULL = 0.97
_SHORT = 0.1  # of the host's memory: with more left the kernel kills nothing for the host's sake


@dataclass(slots=True)
class Event:
    """One kill, or several within seconds, as counters and the kernel's log report it."""

    at: float
    holders: Holders
    # by leaf: the reading before, and after
    groups: dict[str, tuple[CgroupMemory, CgroupMemory]] = field(default_factory=dict)
    host_before: HostMemory | None = None  # the last reading before
    host: HostMemory | None = None  # the reading that shows the host's counter risen
    kernel: list[tuple[KernelOomKill, Seen | None]] = field(default_factory=list)
    kernel_at: float | None = None  # when the last of these was read
    vanished: list[Seen] = field(default_factory=list)  # processes below ranks that were gone then

    @property
    def is_of_others(self) -> bool:
        """So far: the kernel reported kills, and none concerned us."""
        return bool(self.kernel) and not self.groups and all(seen is None for _, seen in self.kernel)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`path` is of the cgroup whose limit was met, `peak_bytes` the most that was in it, `ranks` those that
    lost a process."""

    cause: str
    ranks: tuple[int, ...]
    kernel: KernelOomKill | None
    victim: Seen | None
    path: str
    limit_bytes: int | None
    peak_bytes: int | None
    group: CgroupMemory | None
    sure: bool


def leaf_of(group: CgroupMemory) -> str:
    return group.levels[0].path if group.levels else group.path


def is_full(group: CgroupMemory) -> bool:
    return group.limit_bytes is not None and group.usage_bytes >= 0.9 * group.limit_bytes


def is_short(host: HostMemory | None) -> bool:
    return host is not None and host.available_bytes < _SHORT * host.total_bytes


def killed_ranks(job: JobView, at: float) -> list[RankView]:
    """Ranks that ended by SIGKILL about then."""
    return [
        rank
        for rank in (*job.ranks.values(), *job.ranks.past)
        if rank.exit is not None
        and rank.exit.signal == signal.SIGKILL
        and abs((rank.exited_at or at) - at) <= NEAR_SECONDS
    ]


def decide(
    event: Event, job: JobView, full: dict[int, tuple[float, CgroupMemory]], newest: dict[int, CgroupMemory]
) -> Verdict | None:
    """None when the kill was a neighbour's. `full` is each rank's last reading with a full cgroup."""
    killed = killed_ranks(job, event.at)
    kills = [(kill, seen or _by_number(job, kill)) for kill, seen in event.kernel]
    ours = [(kill, seen) for kill, seen in kills if seen is not None and not _ended_otherwise(job, seen)]
    if ours:
        kill, seen = max(ours, key=lambda pair: pair[0].anon_bytes + pair[0].shmem_bytes)
        ranks = tuple(sorted({one.rank for _, one in ours}))
        return _by_kernel(event, kill, seen, ranks, newest)
    if event.groups:
        group = next(iter(event.groups.values()))
        stranger = next((kill for kill, _ in event.kernel if _may_be_of(kill, group[1])), None)
        alone = _alone_in(job, leaf_of(group[1]))
        if stranger is not None and not _is_a_child_of(job, alone, stranger, group[1]):
            alone = ()
        return _by_counter(event, group, killed, stranger, alone)
    if event.host is not None and killed and not event.kernel:
        return _by_host(event, killed, full)
    if event.kernel and job.run.end_unknown and not job.ranks:
        # somebody gives the kernel's lines, and nothing else: whose they are only they know
        kill = max((kill for kill, _ in event.kernel), key=lambda kill: kill.anon_bytes + kill.shmem_bytes)
        return _by_kernel(event, kill, None, (), newest)
    return None


def _may_be_of(kill: KernelOomKill, group: CgroupMemory) -> bool:
    """Whether a kill whose process we do not know can be that which our cgroup counted: the limit that was
    met is one of its."""
    limits = {group.limit_bytes, *(level.limit_bytes for level in group.levels)} - {None}
    return not kill.cgroup or kill.limit_bytes is None or not limits or kill.limit_bytes in limits


def _is_a_child_of(job: JobView, ranks: tuple[int, ...], kill: KernelOomKill, group: CgroupMemory) -> bool:
    """Whether it was a fork of the rank that lives in this cgroup alone: killed there, and called as the rank
    is. Others may live with it (a TensorBoard in the container). In a cgroup namespace the kernel's path
    may be "/", which shows nothing."""
    there = kill.victim_cgroup.strip("/") != "" and leaf_of(group).endswith(kill.victim_cgroup)
    trees = [tree for rank in ranks if (tree := job.ranks[rank].tree) is not None]
    return there and any(tree.main.comm == kill.comm for tree in trees)


def _by_number(job: JobView, kill: KernelOomKill) -> Seen | None:
    """Logs alone: the launcher's table names the pid that ended by signal 9, dmesg the pid that the kernel
    killed."""
    for rank in (*job.ranks.values(), *job.ranks.past):
        killed = rank.exit is not None and rank.exit.signal == signal.SIGKILL
        if killed and rank.tree is None and rank.placement.pid == kill.pid:
            return Seen(rank.rank, kill.pid, 0, kill.comm, True, 0.0, 0)
    return None


def _ended_otherwise(job: JobView, seen: Seen) -> bool:
    """A process of ours has this pid and name, yet it was not killed: the kernel's numbers are of another
    namespace."""
    rank = job.ranks.get(seen.rank)
    end = rank.exit if rank is not None else None
    return seen.main and end is not None and end.signal not in (None, signal.SIGKILL)


def _by_kernel(
    event: Event,
    kill: KernelOomKill,
    seen: Seen | None,
    ranks: tuple[int, ...],
    newest: dict[int, CgroupMemory],
) -> Verdict:
    group = None if seen is None else _group_of(event, seen.rank, newest)
    if kill.cgroup == "?" and event.groups:
        before, after = next(iter(event.groups.values()))
        cause, level = _bound(before, after)
        return Verdict(cause, ranks, kill, seen, level.path, level.limit_bytes, level.peak_bytes, after, True)
    if not kill.cgroup:
        return Verdict("global_oom", ranks, kill, seen, "", None, None, group, True)
    parent = kill.victim_cgroup != kill.cgroup and kill.victim_cgroup.startswith(
        kill.cgroup.rstrip("/") + "/"
    )
    path = _as_mounted(kill.cgroup, group)
    cause = "parent_cgroup_limit" if parent else "cgroup_limit"
    return Verdict(cause, ranks, kill, seen, path, kill.limit_bytes, kill.usage_bytes, group, True)


def _as_mounted(path: str, group: CgroupMemory | None) -> str:
    """The path under which it can be read, where it is one of those that we see."""
    levels = group.levels if group is not None else ()
    return next((level.path for level in levels if path != "/" and level.path.endswith(path)), path)


def _group_of(event: Event, rank: int, newest: dict[int, CgroupMemory]) -> CgroupMemory | None:
    for _, after in event.groups.values():
        if after.rank == rank:
            return after
    if event.groups:
        return next(iter(event.groups.values()))[1]
    return newest.get(rank)


def _by_counter(
    event: Event,
    group: tuple[CgroupMemory, CgroupMemory],
    killed: list[RankView],
    stranger: KernelOomKill | None,
    alone: tuple[int, ...],
) -> Verdict:
    before, after = group
    cause, level = _bound(before, after)
    # The counter counts every kill of its processes, those for the host's sake too.
    limited = level.limit_bytes is not None
    met = limited and max(level.usage_bytes, level.peak_bytes or 0, before.usage_bytes) >= _FULL * (
        level.limit_bytes or 0
    )
    if (not limited and not after.limit_bytes) or (not met and is_short(event.host_before)):
        cause = "global_oom"
    lost = None
    if not killed and stranger is None:
        lost = max(event.vanished, key=lambda seen: seen.rss_bytes, default=None)
    ranks = tuple(sorted(rank.rank for rank in killed)) or ((lost.rank,) if lost is not None else alone)
    if cause == "global_oom":
        return Verdict(cause, ranks, stranger, lost, "", None, None, after, False)
    path, limit, peak = level.path, level.limit_bytes, level.peak_bytes
    return Verdict(cause, ranks, stranger, lost, path, limit, peak, after, limited)


def _alone_in(job: JobView, leaf: str) -> tuple[int, ...]:
    """The one rank that lives in this cgroup: what is killed there is its own, also a child that was not
    seen."""
    ranks = [
        rank.rank for rank in job.ranks.values() if rank.cgroup is not None and leaf_of(rank.cgroup) == leaf
    ]
    return tuple(ranks) if len(ranks) == 1 and len(job.ranks) > 1 else ()


def _bound(before: CgroupMemory, after: CgroupMemory) -> tuple[str, CgroupLevel]:
    """The level whose limit was met between two readings, and whether it is the rank's own or a parent."""
    if not after.levels:
        level = CgroupLevel(after.path, after.usage_bytes, after.limit_bytes, after.peak_bytes)
        return "cgroup_limit", level
    limits = [level.limit_bytes for level in after.levels if level.limit_bytes is not None]
    if after.limit_bytes is not None and after.limit_bytes < min(limits, default=after.limit_bytes + 1):
        top = after.levels[-1]  # a parent that cannot be seen, of which only v1 shows the limit
        return "parent_cgroup_limit", CgroupLevel(
            f"a parent of {top.path}", top.usage_bytes, after.limit_bytes, None
        )
    met = {level.path: level.max_events or 0 for level in before.levels}
    limited = [level for level in after.levels if level.limit_bytes is not None] or list(after.levels[:1])
    level = _tightest(limited, met, before.path)
    return ("cgroup_limit" if level.path == after.levels[0].path else "parent_cgroup_limit"), level


def _tightest(limited: list[CgroupLevel], met: dict[str, int], path: str) -> CgroupLevel:
    """The one level that met its limit again, else the one that was read as the tightest, else the first."""
    full = [
        level
        for level in limited
        if max(level.peak_bytes or 0, level.usage_bytes) >= _FULL * (level.limit_bytes or 1 << 62)
    ]
    rose = [level for level in full if (level.max_events or 0) > met.get(level.path, 1 << 62)]
    tight = [level for level in full if level.path == path]
    return next(iter((rose if len(rose) == 1 else []) or tight or full or limited))


def _by_host(
    event: Event, killed: list[RankView], last: dict[int, tuple[float, CgroupMemory]]
) -> Verdict | None:
    """The host's counter counts kills of cgroups too, and a cgroup that went with its last process counts no
    more."""
    ranks = tuple(sorted(rank.rank for rank in killed))
    if is_short(event.host_before):
        return Verdict("global_oom", ranks, None, None, "", None, None, None, False)
    readings = [last[rank] for rank in ranks if rank in last]
    full = [group for at, group in readings if event.at - at <= 3 * NEAR_SECONDS]
    if not full:
        return None  # a kill and a SIGKILL at one time: nothing joins the two
    group = full[0]
    cause = "cgroup_limit" if group.path == leaf_of(group) else "parent_cgroup_limit"
    return Verdict(cause, ranks, None, None, group.path, group.limit_bytes, group.peak_bytes, group, False)


def resolve(kill: KernelOomKill, at: float, growth: Growth, *, counted: bool) -> Seen | None:
    """The process of the job that the kernel killed. Its number may be of another namespace than ours: then
    by name and size, if a counter of the job's own cgroup shows that one of its processes was killed."""
    return growth.process(kill.pid, kill.comm) or (growth.like(kill, at) if counted else None)
