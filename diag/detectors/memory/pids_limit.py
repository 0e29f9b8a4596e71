"""The cgroup's limit of processes and threads: met, or about to be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import LinePattern, Lines, finding, quoted, ranks_of, since_of, who
from diag.detectors.memory.messages import format_phase
from diag.detectors.memory.refusals import first_failed
from diag.model import Evidence, Finding, NotChecked, Severity
from diag.model.observations import CgroupPids, KernelRefusal, LogLine
from diag.state.view import JobView
from diag.text.units import format_ranks

_NEARLY_FULL = 0.98
_LEAST_ROOM = 8
_TOGETHER_SECONDS = 60.0
_READ_SECONDS = 15.0  # so long a reading of the cgroup is waited for, which comes each few seconds


class PidsLimitDetector(Detector):
    name = "pids-limit"
    listens = (CgroupPids, KernelRefusal, LogLine)

    def __init__(self) -> None:
        self._first: dict[int | None, CgroupPids] = {}
        self._refused: dict[int | None, tuple[float, CgroupPids]] = {}
        self._kernel: tuple[float, KernelRefusal] | None = None
        self._refusal = LinePattern.named("new_process")
        self._lines: dict[int | None, tuple[float, str]] = {}
        self._read_at = 0.0

    def observe(self, at: float, fact: CgroupPids | KernelRefusal | LogLine) -> None:
        if isinstance(fact, CgroupPids):
            self._read_at = at
            first = self._first.setdefault(fact.rank, fact)
            if fact.refused > first.refused and fact.rank not in self._refused:
                self._refused[fact.rank] = (at, fact)
        elif isinstance(fact, KernelRefusal):
            if fact.what == "pids" and self._kernel is None:
                self._kernel = (at, fact)
        elif not fact.bar and len(self._lines) < 4096 and self._refusal.matches(fact.text):
            self._lines[fact.rank] = (at, fact.text)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if self._refused:
            yield self._by_cgroup(job)
        elif self._lines and self._kernel is not None:
            yield self._by_line(job)
        elif self._lines and (full := _at_user_limit(job)) is not None:
            if not self._is_to_be_read(now, job):
                yield self._by_user(job, full)
        else:
            yield from _nearly_full(now, job)

    def _is_to_be_read(self, now: float, job: JobView) -> bool:
        """The cgroup was last read before the line came: its next reading may show that it was the one that
        refused."""
        last = max(at for at, _ in self._lines.values())
        return 0.0 < self._read_at <= last and now - last < _READ_SECONDS and job.returncode is None

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        if self._lines and not self._first and self._kernel is None and _broken(job):
            yield NotChecked(
                "the limit of processes (pids.max)",
                "no pids cgroup could be read",
                "check pids.events of the container's cgroup, and `ulimit -u`",
            )

    def _by_cgroup(self, job: JobView) -> Finding:
        at, pids = min(self._refused.values(), key=lambda pair: pair[0])
        newest = max((one for _, one in self._refused.values()), key=lambda one: one.refused)
        lines = {rank: line for rank, line in self._lines.items() if abs(line[0] - at) <= _TOGETHER_SECONDS}
        # Those that were there then may have ended since: how many are left shows nothing.
        limit = f"a limit of {newest.limit} processes and threads" if newest.limit else "its limit is met"
        refused = newest.refused - self._first[newest.rank].refused
        reading = f"pids.current {newest.current}, pids.max {newest.limit}, refused {pids.refused}"
        return _finding(
            job,
            "cgroup_pids",
            min([at, *(when for when, _ in lines.values())]),
            lines,
            f"cgroup {newest.path} allows no more ({limit}, {refused} refused)",
            Evidence("cgroup", reading, at, pids.rank),
        )

    def _by_line(self, job: JobView) -> Finding:
        assert self._kernel is not None
        at, refusal = self._kernel
        why = f"the kernel reports that cgroup {_path_of(job, refusal.cgroup)} allows no more"
        return _finding(job, "cgroup_pids", at, self._lines, why, Evidence("kmsg", refusal.text, at))

    def _by_user(self, job: JobView, limit: int) -> Finding:
        why = f"RLIMIT_NPROC allows its user {limit}"
        return _finding(job, "rlimit_nproc", since_of(self._lines), self._lines, why)


def _path_of(job: JobView, named: str) -> str:
    """The kernel names a cgroup below its controller's top; where a rank lives in it, as that sees it."""
    paths = (rank.pids.path for rank in job.ranks.values() if rank.pids is not None)
    return next((path for path in paths if named and path.endswith(named)), named)


def _finding(job: JobView, cause: str, since: float, lines: Lines, why: str, *evidence: Evidence) -> Finding:
    ranks = ranks_of(lines) or first_failed(job, since)
    return finding(
        "pids-limit",
        cause,
        severity=Severity.CRITICAL if _broken(job) else None,
        ranks=ranks,
        since=since,
        summary=f"{who(ranks)} could not start a process or thread{format_phase(job, since)}: {why}",
        evidence=(*evidence, *quoted(lines)),
    )


def _nearly_full(now: float, job: JobView) -> Iterator[Finding]:
    """Reported before a fork fails: so little room that the next DataLoader does not fit."""
    full = [
        rank
        for rank in job.alive_ranks()
        if rank.pids is not None
        and rank.pids.limit
        and rank.pids.current >= min(_NEARLY_FULL * rank.pids.limit, rank.pids.limit - _LEAST_ROOM + 1)
    ]
    if not full:
        return
    pids = full[0].pids
    assert pids is not None
    ranks = tuple(rank.rank for rank in full)
    yield finding(
        "pids-limit",
        "nearly_full",
        ranks=ranks,
        since=now,
        summary=f"cgroup {pids.path} of {format_ranks(ranks)} holds {pids.current} of {pids.limit} processes and threads: the next "
        "that is started may be refused",
        evidence=[
            Evidence("cgroup", f"pids.current {pids.current}, pids.max {pids.limit}", now, full[0].rank)
        ],
    )


def _at_user_limit(job: JobView) -> int | None:
    """RLIMIT_NPROC where it is low enough to matter: it counts all of the user's processes, which are not
    seen here."""
    limits = [rank.limits.get("Max processes") for rank in job.ranks.values() if rank.limits]
    low = [limit for limit in limits if limit is not None and limit <= 65536]
    return min(low, default=None)


def _broken(job: JobView) -> bool:
    return job.run.may_have_failed or any(rank.failed for rank in job.ranks.values())
