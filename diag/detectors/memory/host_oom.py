"""Host memory ran out: which limit, which process, which grew, in which phase, peak against limit."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row, who, with_words
from diag.detectors.memory.causes import (
    NEAR_SECONDS,
    Event,
    Verdict,
    decide,
    is_full,
    killed_ranks,
    leaf_of,
    resolve,
)
from diag.detectors.memory.growth import Growth
from diag.detectors.memory.messages import (
    filled_by,
    format_grower,
    format_phase,
    format_victim,
    less_after_kill,
    phase_of,
)
from diag.detectors.memory.refusals import STRICT, Refusal, Refusals
from diag.detectors.memory.stall import Stall, Stalls
from diag.model import Confidence, Evidence, Finding, NotChecked, Severity, numbered
from diag.model.observations import (
    CgroupMemory,
    HostMemory,
    KernelOomKill,
    KernelRefusal,
    LogLine,
    ProcessTree,
)
from diag.state.view import JobView
from diag.text.units import format_bytes, format_ranks, format_ratio

_KEPT_EVENTS = 32
# exits, counters and the kernel's log report one kill in any order, the log within a second
_SETTLE_SECONDS = 1.5
_ONE_MOMENT_SECONDS = 1.0  # between two channels' reports of one kill
_PLAINLY, _TIMES = 0.2, 3  # of the limit; as much as those that lost a process


class HostOomDetector(Detector):
    name = "host-oom"
    listens = (ProcessTree, CgroupMemory, HostMemory, KernelOomKill, KernelRefusal, LogLine)

    def __init__(self) -> None:
        self._growth = Growth()
        self._refusals = Refusals()
        self._stalls = Stalls()
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self._groups: dict[str, CgroupMemory] = {}  # the last reading of each leaf
        # of each rank, the last reading with a full cgroup
        self._full: dict[int, tuple[float, CgroupMemory]] = {}
        self._newest: dict[int, CgroupMemory] = {}
        self._host: HostMemory | None = None
        self._host_kills: int | None = None
        self._counted = False  # some counter could be read

    def observe(
        self,
        at: float,
        fact: ProcessTree | CgroupMemory | HostMemory | KernelOomKill | KernelRefusal | LogLine,
    ) -> None:
        if isinstance(fact, ProcessTree):
            self._growth.observe(at, fact)
            if self._events and at - self._events[-1].at <= NEAR_SECONDS:
                self._events[-1].vanished = self._growth.vanished(self._events[-1].at)
        elif isinstance(fact, CgroupMemory):
            self._cgroup(at, fact)
        elif isinstance(fact, HostMemory):
            self._host_memory(at, fact)
        elif isinstance(fact, KernelOomKill):
            event = self._event(at, fact, ours=resolve(fact, at, self._growth, counted=False) is not None)
            event.kernel_at = at
            event.kernel.append((fact, resolve(fact, at, self._growth, counted=bool(event.groups))))
        else:
            self._refusals.observe(at, fact)

    def _cgroup(self, at: float, fact: CgroupMemory) -> None:
        leaf = leaf_of(fact)
        before, self._groups[leaf] = self._groups.get(leaf), fact
        self._counted = True
        if fact.rank is not None:
            self._newest[fact.rank] = fact
            if is_full(fact):
                self._full[fact.rank] = (at, fact)
        self._stalls.observe(at, fact)
        if before is not None and fact.oom_kills > before.oom_kills:
            event = self._event(at, counted=True)
            event.groups[leaf] = (before, fact)
            event.kernel = [
                (kill, seen or resolve(kill, at, self._growth, counted=True)) for kill, seen in event.kernel
            ]

    def _host_memory(self, at: float, fact: HostMemory) -> None:
        if fact.oom_kills is not None:
            if self._host_kills is not None and fact.oom_kills > self._host_kills:
                self._event(at).host = fact
            self._host_kills = fact.oom_kills
            self._counted = True
        self._host = fact

    def _event(
        self, at: float, kill: KernelOomKill | None = None, *, ours: bool = False, counted: bool = False
    ) -> Event:
        """What happens within some seconds is one event; the moment that was reported first is its moment, but
        for what was reported of others before."""
        if self._events and at - self._events[-1].at <= NEAR_SECONDS:
            event = self._events[-1]
            if (ours or counted) and not event.groups and all(seen is None for _, seen in event.kernel):
                self._begin_now(event, at, kill)
            if kill is None or (event.kernel and not (ours and event.is_of_others)):
                return event
            if ours and event.is_of_others:
                event.at, event.host_before, event.vanished = at, self._host, self._growth.vanished(at)
            event.holders = self._growth.holders(event.at, kill)
            return event
        event = Event(at, self._growth.holders(at, kill))
        event.host_before = self._host
        event.vanished = self._growth.vanished(at)
        self._events.append(event)
        return event

    def _begin_now(self, event: Event, at: float, kill: KernelOomKill | None) -> None:
        """What was reported until now (the host's counter, the kernel's lines) was of neighbours, but for a line
        of this moment."""
        moment = at
        if kill is None and event.kernel_at is not None and at - event.kernel_at <= _ONE_MOMENT_SECONDS:
            moment = event.kernel_at
        if moment - event.at > _ONE_MOMENT_SECONDS:
            event.at, event.vanished = moment, self._growth.vanished(moment)
            event.holders = self._growth.holders(moment, kill)

    # -- findings -----------------------------------------------------------------------------------------

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        over = [
            event for event in self._events if now - event.at >= _SETTLE_SECONDS or job.returncode is not None
        ]
        found = [(event, verdict) for event in over if (verdict := self._decide(event, job)) is not None]
        if found:  # that which cost a rank its life, else the first
            fatal = [pair for pair in found if killed_ranks(job, pair[0].at)]
            yield self._killed(job, *(fatal or found)[0])
            return
        refusal = self._refusals.decide(job, self._host)
        if refusal is not None:
            yield self._refused(job, refusal)
            return
        stall = self._stalls.decide(now, job)
        if stall is not None:
            yield _stalled(job, stall)

    def _decide(self, event: Event, job: JobView) -> Verdict | None:
        return decide(event, job, self._full, self._newest)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        killed = [rank for rank in job.ranks.values() if rank.exit and rank.exit.signal == signal.SIGKILL]
        if killed and not self._counted:
            yield NotChecked(
                "whether the OOM killer did it",
                "no memory cgroup and no /proc/vmstat counter could be read",
                "check dmesg on the host",
            )
        elif ("kernel log", None) in job.sources.failed and any(
            event.host is not None and killed_ranks(job, event.at) and self._decide(event, job) is None
            for event in self._events
        ):
            yield NotChecked(
                "whether the OOM killer did it",
                "the host counted a kill for memory when the rank died, and it is not known whose: neither its cgroup nor the host "
                "was full when last read",
                "check dmesg on the host, or let diag read /dev/kmsg",
            )

    def _killed(self, job: JobView, event: Event, verdict: Verdict) -> Finding:
        phase = phase_of(job, event.at)
        grower = format_grower(job, event.holders, verdict.victim)
        victim = format_victim(job, verdict)
        tail = f"; {grower}" if grower else ""
        filled = filled_by(event, verdict, self._growth.known_pids())
        kills = [kill for kill, seen in event.kernel if seen is not None or kill is verdict.kernel]
        evidence = [Evidence("kmsg", kill.text[:500], event.at) for kill in kills[:3]]
        if verdict.group is not None:
            evidence.append(Evidence("cgroup", _format_cgroup(verdict), event.at, verdict.group.rank))
        if event.host is not None:
            counted = f"oom_kill rose to {event.host.oom_kills}; MemAvailable {_available(event.host)}"
            evidence.append(Evidence("vmstat", counted, event.at))
        if filled:
            evidence.append(Evidence("memory", "; ".join(filled), event.at))
        culprits = _culprits(verdict, event)
        grew = f"{victim} {grower}" if grower.startswith("it ") else grower
        return finding(
            self.name,
            verdict.cause,
            severity=None if verdict.ranks or job.broken else Severity.WARNING,
            confidence=None if verdict.sure else Confidence.MEDIUM,
            ranks=culprits,
            waiting_ranks=tuple(rank for rank in verdict.ranks if rank not in culprits),
            since=event.at,
            summary=f"the kernel killed {victim}{_with_all(event)} for memory{format_phase(job, event.at, phase)}: "
            f"{_format_limit(verdict, event)}{tail}",
            words={"less": less_after_kill(job, verdict, phase, grew)},
            evidence=evidence,
        )

    def _refused(self, job: JobView, refusal: Refusal) -> Finding:
        known = row(self.name, refusal.cause)
        size = f" of {format_bytes(refusal.size_bytes)}" if refusal.size_bytes else ""
        strict = refusal.cause == "allocation_refused" and self._is_strict
        space = refusal.limit is not None and refusal.limit[0] == "Max address space"
        return finding(
            self.name,
            refusal.cause,
            ranks=refusal.ranks,
            since=refusal.at,
            summary=f"{who(refusal.ranks, 'a rank')} could not {with_words(known['what'], {'size': size})}"
            f"{format_phase(job, refusal.at)}: {self._why(refusal)}",
            advice=known["strict"] if strict else None,
            words={"option": "-v" if space else "-d"},
            evidence=[Evidence("output", text[:500], at, rank) for rank, at, text in refusal.lines],
        )

    @property
    def _is_strict(self) -> bool:
        return self._host is not None and self._host.overcommit == STRICT

    def _why(self, refusal: Refusal) -> str:
        host = self._host
        if refusal.limit is not None:
            name = "RLIMIT_AS" if refusal.limit[0] == "Max address space" else "RLIMIT_DATA"
            return f"{name} is {format_bytes(refusal.limit[1])}"
        if refusal.cause == "pinned_host":
            left = f", {_available(host)} available" if host else ""
            return f"CUDA ran out of host memory, not of the GPU's{left}"
        if host is not None and self._is_strict:
            promised = f"{format_bytes(host.committed_bytes)} of {format_bytes(host.commit_limit_bytes)}"
            return f"vm.overcommit_memory is 2, {promised} are promised already"
        left = f" ({_available(host)} available)" if host else ""
        return f"the kernel refused it{left}"


def _stalled(job: JobView, stall: Stall) -> Finding:
    group, high = stall.group, stall.high_bytes
    limit = format_bytes(group.limit_bytes if high is None else high)
    above = f"above memory.high of {limit}" if high is not None else f"at its limit of {limit}"
    share = ""
    if stall.ratio is not None:
        share = f", all its tasks were stalled for {format_ratio(stall.ratio)} of the last 10 s"
    waits = numbered("[waits|wait]", len(stall.ranks))
    known = row("host-oom", "reclaim_stall")
    return finding(
        "host-oom",
        "reclaim_stall",
        ranks=stall.ranks,
        since=stall.since,
        summary=f"{format_ranks(stall.ranks)} {waits} for memory{format_phase(job, stall.since)}: "
        f"cgroup {group.path} is {above} ({format_bytes(group.usage_bytes)} used){share}",
        advice=known["above_high" if high is not None else "advice"],
        words={"limit": limit, "less": known["use"]["other"]},
        evidence=[
            Evidence(
                "cgroup",
                f"high {group.high_events}, max {group.max_events} events, usage {format_bytes(group.usage_bytes)}, "
                f"page cache {format_bytes(group.cache_bytes)}{stall.seen}",
                stall.since,
                group.rank,
            )
        ],
    )


def _available(host: HostMemory) -> str:
    return f"{format_bytes(host.available_bytes)} of {format_bytes(host.total_bytes)}"


def _with_all(event: Event) -> str:
    whole = any(after.group_kills > before.group_kills for before, after in event.groups.values())
    return " and all else in its cgroup (memory.oom.group)" if whole else ""


def _culprits(verdict: Verdict, event: Event) -> tuple[int, ...]:
    """The kernel takes the biggest, not the one that grew: a rank that plainly filled the cgroup while those
    that lost a process stood still is to blame for it."""
    grower, host = event.holders.grower, event.host_before
    whole = verdict.limit_bytes or (host.total_bytes if host is not None else 0)
    if grower is None or not verdict.ranks or grower[0] in verdict.ranks or not whole:
        return verdict.ranks
    grown = dict(event.holders.by_rank)
    mine, theirs = grown.get(grower[0], 0), max(grown.get(rank, 0) for rank in verdict.ranks)
    return (grower[0],) if mine >= _PLAINLY * whole and mine >= _TIMES * theirs else verdict.ranks


def _format_limit(verdict: Verdict, event: Event) -> str:
    if verdict.cause == "global_oom":
        host = event.host_before or event.host
        left = (
            f" ({format_bytes(host.total_bytes)}, {format_bytes(host.available_bytes)} available when last read)"
            if host
            else ""
        )
        return f"the host ran out{left}"
    limit = f"limit {format_bytes(verdict.limit_bytes)}" if verdict.limit_bytes else "no limit of its own"
    whose = "of a parent, " if verdict.cause == "parent_cgroup_limit" else ""
    return f"cgroup {verdict.path} ({whose}{limit}, peak {format_bytes(verdict.peak_bytes)})"


def _format_cgroup(verdict: Verdict) -> str:
    group = verdict.group
    assert group is not None
    levels = "".join(
        f"; {level.path}: {format_bytes(level.usage_bytes)} of {format_bytes(level.limit_bytes)}, peak {format_bytes(level.peak_bytes)}"
        for level in group.levels
        if level.limit_bytes is not None
    )
    return (
        f"oom_kill {group.oom_kills}, usage {format_bytes(group.usage_bytes)}, peak {format_bytes(group.peak_bytes)}, limit "
        f"{format_bytes(group.limit_bytes)}, page cache {format_bytes(group.cache_bytes)}, shm "
        f"{format_bytes(group.shmem_bytes)}{levels}"
    )
