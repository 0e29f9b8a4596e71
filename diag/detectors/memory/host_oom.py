"""Host memory ran out: which limit, which process, in which phase, peak against limit."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

from diag.jobstate import JobState
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.observations import CgroupMemory, HostMemory, LogLine, Observation
from diag.rankstate import RankState

__all__ = ["HostOomDetector"]

_GIB = 1 << 30

# CPython: MemoryError; glibc via OSError: [Errno 12] Cannot allocate memory
# torch 2.13, c10/core/impl/alloc_cpu.cpp: RuntimeError: [enforce fail at alloc_cpu.cpp:128] err == 0.
#   DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)
# The ibv_ lines of a low memlock limit say Cannot allocate memory too and are another finding's.
_ALLOCATION = re.compile(
    r"DefaultCPUAllocator: can't allocate memory|^(?:\[rank\d+\]: ?)?MemoryError\b"
    r"|\[Errno 12\] Cannot allocate memory|std::bad_alloc"
)
_WORDS = ("allocate memory", "MemoryError", "bad_alloc")


_AT_THE_LIMIT = 0.9
_AT_THE_LIMIT_SECONDS = 30.0
_SPARE = 0.1  # of the host's memory: with so much left the kernel kills nobody for the host's sake


class HostOomDetector:
    """Meaning: host memory ran out: the kernel killed a process of the job, or an allocation was refused.

    Evidence: the oom_kill counter of the rank's memory cgroup and of the whole host, exit by SIGKILL, the lines of a
    refused allocation, RLIMIT_AS.

    What to do: the advice names the limit that was hit.

    False alarms: an OOM kill of a neighbour raises the host's counter; it is reported only together with a death here.
    """

    name = "host-oom"

    def __init__(self) -> None:
        self._first: dict[tuple[int | None, str], int] = {}
        self._cgroup_kill: tuple[float, CgroupMemory] | None = None
        self._at_limit: tuple[float, CgroupMemory] | None = None  # the last that was seen so
        self._host_kill_at: float | None = None
        self._first_host: int | None = None
        self._refused: dict[int | None, tuple[float, str]] = {}
        self._phase_at_kill = ""

    def observe(self, at: float, fact: Observation) -> None:
        if isinstance(fact, CgroupMemory):
            first = self._first.setdefault((fact.rank, fact.path), fact.oom_kills)
            if fact.limit_bytes and fact.usage_bytes >= _AT_THE_LIMIT * fact.limit_bytes:
                self._at_limit = (at, fact)
            if fact.oom_kills > first and self._cgroup_kill is None:
                self._cgroup_kill = (at, fact)
        elif isinstance(fact, HostMemory) and fact.oom_kills is not None:
            if self._first_host is None:
                self._first_host = fact.oom_kills
            elif fact.oom_kills > self._first_host and self._host_kill_at is None:
                self._host_kill_at = at
        elif isinstance(fact, LogLine) and _is_refusal(fact) and len(self._refused) < 4096:
            self._refused.setdefault(fact.rank, (at, fact.text))

    def check(self, now: float, job: JobState) -> Iterator[Finding]:
        killed = sorted(rank.rank for rank in job.ranks.values() if rank.exit and rank.exit.signal == signal.SIGKILL)
        if self._cgroup_kill is not None:
            yield self._by_cgroup(job, killed)
        elif self._host_kill_at is not None and killed:
            # The host's counter counts kills of cgroups too, and a cgroup that went with its last process tells no more.
            full = self._at_limit is not None and self._at_limit[0] >= self._host_kill_at - _AT_THE_LIMIT_SECONDS
            spare = job.host_memory is not None and job.host_memory.available_bytes > _SPARE * job.host_memory.total_bytes
            yield self._by_cgroup(job, killed) if full and spare else self._by_host(job, killed)
        elif self._refused and self._matters(job):
            yield self._by_refusal(job)

    def not_checked(self, job: JobState) -> Iterable[NotChecked]:
        unseen = [rank for rank in job.ranks.values() if rank.exit and rank.exit.signal == signal.SIGKILL]
        if unseen and not self._first and self._first_host is None:
            yield NotChecked(
                "whether the OOM killer did it", "no memory cgroup and no /proc/vmstat counter could be read",
                "look at dmesg on the host",
            )

    def _matters(self, job: JobState) -> bool:
        """A refused allocation that the program survived is no finding."""
        return any(rank.exit and (rank.exit.exit_code or rank.exit.signal) for rank in job.ranks.values()) or bool(
            job.returncode
        )

    def _by_cgroup(self, job: JobState, killed: list[int]) -> Finding:
        known = self._cgroup_kill or self._at_limit
        assert known is not None
        at, group = known
        limit, peak = group.limit_bytes, group.peak_bytes
        size = f"limit {_gib(limit)}" if limit else "no limit of its own"
        who = f"rank {','.join(map(str, killed))}" if killed else "a process of the job"
        return _finding(
            ranks=tuple(killed or ([group.rank] if group.rank is not None else [])), since=at, cause="cgroup_limit",
            confidence=Confidence.HIGH if self._cgroup_kill else Confidence.MEDIUM,
            summary=f"the kernel killed {who} for memory {_phase(job)}: cgroup {group.path} ({size}, peak {_gib(peak)})",
            advice="Raise the memory limit of the container or pod (resources.limits.memory), or use less host memory: fewer "
            "DataLoader workers, no --optimizer_cpu_offload, --no_save_optim true or fewer ranks a node during the save.",
            evidence=(Evidence("cgroup", f"oom_kill {group.oom_kills}, usage {_gib(group.usage_bytes)}, peak {_gib(peak)}, "
                               f"limit {_gib(limit)}, page cache {_gib(group.cache_bytes)}, shm {_gib(group.shmem_bytes)}",
                               at, group.rank),),
        )

    def _by_host(self, job: JobState, killed: list[int]) -> Finding:
        memory = job.host_memory
        total = _gib(memory.total_bytes) if memory else "?"
        assert self._host_kill_at is not None
        return _finding(
            ranks=tuple(killed), since=self._host_kill_at, cause="global_oom", confidence=Confidence.MEDIUM,
            summary=f"the kernel killed rank {','.join(map(str, killed))} for memory {_phase(job)}: the host ({total}) ran out",
            advice="The whole host ran out of memory: see what else runs there, lower host memory use of the save (fewer ranks a "
            "node, no optimizer offload), or take nodes with more memory.",
            evidence=(Evidence("vmstat", f"oom_kill rose; MemAvailable {_gib(memory.available_bytes) if memory else '?'}",
                               self._host_kill_at),),
        )

    def _by_refusal(self, job: JobState) -> Finding:
        ranks = tuple(sorted(rank for rank in self._refused if rank is not None))
        at = min(at for at, _ in self._refused.values())
        limited = _address_space_limit(job, ranks)
        cause = "rlimit_as" if limited else "allocation_refused"
        why = f"RLIMIT_AS is {_gib(limited)}" if limited else "the kernel refused the allocation (overcommit or a full host)"
        return _finding(
            ranks=ranks, since=at, cause=cause, confidence=Confidence.HIGH if limited else Confidence.MEDIUM,
            summary=f"rank {','.join(map(str, ranks)) or '?'} could not allocate host memory {_phase(job)}: {why}",
            advice="Lift the address space limit: `ulimit -v unlimited` before the launcher." if limited else
            "See /proc/sys/vm/overcommit_memory and the host's free memory; with strict overcommit a fork of a big process "
            "needs its whole size once more (save with fewer forks, more swap, or overcommit_memory=0).",
            evidence=tuple(Evidence("output", text[:500], when, rank) for rank, (when, text) in list(self._refused.items())[:3]),
        )


def _finding(
    *, ranks: tuple[int, ...], since: float, cause: str, confidence: Confidence, summary: str, advice: str,
    evidence: tuple[Evidence, ...],
) -> Finding:
    return Finding(
        id="host-oom", subject=JOB, severity=Severity.CRITICAL, confidence=confidence, ranks=ranks, since=since,
        cause=cause, summary=summary, advice=advice, evidence=evidence, final=True,
    )


def _address_space_limit(job: JobState, ranks: tuple[int, ...]) -> int | None:
    states: list[RankState] = [job.ranks[rank] for rank in ranks if rank in job.ranks] or list(job.ranks.values())
    for rank in states:
        limit = rank.limits.get("Max address space") if rank.limits else None
        if limit is not None:
            return limit
    return None


def _phase(job: JobState) -> str:
    return {"ckpt_save": "while saving a checkpoint", "steady": f"after iteration {job.iteration}"}.get(
        job.phase, f"in phase {job.phase}"
    )


def _gib(size: int | None) -> str:
    if size is None:
        return "?"
    return f"{size / _GIB:.1f} GiB" if size >= _GIB // 2 else f"{size / (1 << 20):.0f} MiB"


def _is_refusal(line: LogLine) -> bool:
    """ibv_ lines speak of locked memory, which has its own finding."""
    if line.bar or not any(word in line.text for word in _WORDS):
        return False
    return "ibv_" not in line.text and _ALLOCATION.search(line.text) is not None
