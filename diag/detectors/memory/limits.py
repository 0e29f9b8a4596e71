"""Limits that break training: /dev/shm and open files. Reported before the crash and after it."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diag.detectors.contract import Detector
from diag.detectors.echoed_errors import failed_soon, is_traced, only_quoted
from diag.detectors.findings import LinePattern, Lines, finding, on_ranks, quoted, ranks_of, since_of
from diag.model import Confidence, Finding, NotChecked, Severity
from diag.model.observations import LogLine, PlainLines, QuietLines, SharedMemory
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_bytes, format_ranks

# docker's default /dev/shm; DataLoader workers and NCCL both outgrow it.
_SHM_TOO_SMALL_BYTES = 64 << 20
_SHM_NEARLY_FULL = 0.95
# It fills between two readings, and what filled it is gone with the rank: a bus error is laid to one that was
# never this far from full, or is so small that a batch or a segment of NCCL more is enough. Ours.
_SHM_AMPLE_BYTES, _SHM_AMPLE_RATIO = 1 << 30, 0.80
_DISK_FULL_BYTES = 16 << 20  # same as disk-full
_BUS_ERROR_CODE = 128 + signal.SIGBUS  # as a shell between the launcher and the rank passes it on
_FD_NEARLY_FULL = 0.90
_ABOVE = 8  # lines: the frames of a traceback


class _FirstLine:
    """Keeps the first line that a pattern matched, by rank: the evidence of a limit that was hit."""

    def __init__(self, name: str) -> None:
        self._pattern = LinePattern.named(name)
        self._above: dict[int | None, deque[str]] = {}
        self._sure: dict[int | None, tuple[float, str]] = {}  # under a traceback, or of torch's hook or NCCL
        # the last that may be in the data as well
        self._last: dict[int | None, tuple[float, str]] = {}

    def observe(self, at: float, fact: LogLine | PlainLines | QuietLines) -> None:
        if isinstance(fact, (PlainLines, QuietLines)):
            self._keep(fact.rank, fact.last[-_ABOVE:])
            return
        if fact.bar:
            return
        self._keep(fact.rank, (fact.text,))
        if not self._pattern.matches(fact.text):
            return
        sure = fact.text.startswith(("[rank", "ERROR: Unexpected bus error")) or " NCCL WARN " in fact.text
        sure = sure or is_traced(self._above.get(fact.rank, ()))
        if sure and len(self._sure) < 4096:
            self._sure.setdefault(fact.rank, (at, fact.text))
        elif fact.rank in self._last or len(self._last) < 64:
            self._last[fact.rank] = (at, fact.text)

    def _keep(self, rank: int | None, lines: Iterable[str]) -> None:
        if rank in self._above or len(self._above) < 4096:
            self._above.setdefault(rank, deque(maxlen=_ABOVE)).extend(lines)

    def hits(self, job: JobView, *, likely: bool = False) -> Lines:
        """A line alone counts where a rank failed soon after it, and not of something else, or where more
        speaks for it."""
        hits = dict(self._sure)
        for rank, (at, text) in self._last.items():
            if rank not in hits and (likely or failed_soon(job, at)) and not only_quoted(job, text):
                hits[rank] = (at, text)
        return hits


@dataclass(frozen=True, slots=True)
class _Seen:
    """What speaks for a /dev/shm that is too small."""

    filled: set[int]  # ranks that once saw it nearly full
    full: list[RankView]
    small: list[RankView]
    bus: list[RankView]  # ended by SIGBUS
    hits: Lines
    sure: bool

    @property
    def crashed(self) -> bool:
        return bool(self.hits or self.bus)


class ShmDetector(Detector):
    name = "shm-too-small"
    listens = (LogLine, PlainLines, QuietLines, SharedMemory)

    def __init__(self) -> None:
        self._lines = _FirstLine("shared_memory")
        self._guesses = _FirstLine("bus_error")
        self._highest: dict[int, float] = {}  # by rank, the share that was used

    def observe(self, at: float, fact: LogLine | PlainLines | QuietLines | SharedMemory) -> None:
        if isinstance(fact, (LogLine, PlainLines, QuietLines)):
            self._lines.observe(at, fact)
            self._guesses.observe(at, fact)
        elif fact.rank is not None and fact.size_bytes:
            used = 1 - fact.available_bytes / fact.size_bytes
            self._highest[fact.rank] = max(used, self._highest.get(fact.rank, 0.0))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        seen = self._seen(job)
        severity: Severity | None = None
        if seen.crashed:
            cause = "exhausted"
            ranks, since, summary = self._crash(seen, job, now)
        elif seen.full:
            cause, ranks, since = "nearly_full", _numbers(seen.full), now
            summary = f"{_shm_size(seen.full)}: the next batch of a DataLoader worker may not fit"
        elif seen.small:
            cause, ranks, since = "small", _numbers(seen.small), now
            severity = Severity.WARNING if any(map(_has_workers, seen.small)) else None
            summary = f"{_shm_size(seen.small)}: too small for DataLoader workers and for NCCL"
        else:
            return
        yield finding(
            self.name,
            cause,
            severity=severity,
            confidence=Confidence.HIGH if seen.sure else None,
            ranks=ranks,
            since=since,
            summary=summary,
            evidence=quoted(seen.hits),
        )

    def _seen(self, job: JobView) -> _Seen:
        filled = {rank for rank, used in self._highest.items() if used >= _SHM_NEARLY_FULL}
        lines = self._lines.hits(job, likely=bool(filled))
        full = [rank for rank in job.ranks.values() if _used_share(rank) >= _SHM_NEARLY_FULL]
        small = [rank for rank in job.ranks.values() if _is_small(rank)]
        bus: list[RankView] = []
        guesses: Lines = {}
        if filled or not _disk_is_full(job):
            bus = [rank for rank in job.ranks.values() if _of_bus_error(rank) and self._may_lack(rank, job)]
            guesses = self._guesses.hits(job, likely=bool(filled))
            guesses = {rank: line for rank, line in guesses.items() if self._may_be_full(rank, job)}
        sure = bool(lines or full or (guesses and filled))
        return _Seen(filled, full, small, bus, {**guesses, **lines}, sure)

    def _crash(self, seen: _Seen, job: JobView, now: float) -> tuple[tuple[int, ...], float, str]:
        """Whose, since when, and the summary."""
        size = _shm_size(
            seen.full or seen.small or [of for rank in seen.bus for of in _with_reading([rank], job)]
        )
        if seen.hits:
            ranks = ranks_of(seen.hits) or tuple(sorted(seen.filled))
            return ranks, since_of(seen.hits), f"shared memory ran out{on_ranks(ranks)}: {size}"
        # A page of a shared file for which there is no room: SIGBUS to whoever touches it, and no line
        # from any process.
        ranks = _numbers(seen.bus)
        text = f"shared memory ran out{on_ranks(ranks)}: killed by SIGBUS, and {size} when last read"
        return ranks, min(rank.exited_at or now for rank in seen.bus), text

    def _is_ample(self, rank: RankView) -> bool:
        big = rank.shm is not None and rank.shm.size_bytes > _SHM_AMPLE_BYTES
        return big and self._highest.get(rank.rank, 0.0) < _SHM_AMPLE_RATIO

    def _may_lack(self, rank: RankView, job: JobView) -> bool:
        return any(not self._is_ample(of) for of in _with_reading([rank], job))

    def _may_be_full(self, rank: int | None, job: JobView) -> bool:
        """Whether PyTorch's guess can be right; where /dev/shm was not read, it counts."""
        whose = [job.ranks[rank]] if rank is not None and rank in job.ranks else list(job.ranks.values())
        read = _with_reading(whose, job)
        return not read or not all(self._is_ample(of) for of in read)


class FdLimitDetector(Detector):
    name = "fd-limit"
    listens = (LogLine, PlainLines, QuietLines)

    def __init__(self) -> None:
        self._lines = _FirstLine("open_files")

    def observe(self, at: float, fact: LogLine | PlainLines | QuietLines) -> None:
        self._lines.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        hits = self._lines.hits(job)
        near = [rank for rank in job.ranks.values() if rank.alive and _fd_ratio(rank) >= _FD_NEARLY_FULL]
        if not near and not hits:
            return
        ranks = tuple(sorted({*ranks_of(hits), *(rank.rank for rank in near)}))
        text = f"a process{on_ranks(ranks)} could not open another file (EMFILE)"
        if near:
            rank = near[0]
            assert rank.tree is not None and rank.limits is not None
            text = f"rank {rank.rank} has {rank.tree.open_files} of {rank.limits.get('Max open files')} files open"
        yield finding(
            self.name,
            "exhausted" if hits else "nearly_full",
            severity=Severity.CRITICAL if hits and (job.broken or near) else None,
            ranks=ranks,
            since=since_of(hits) if hits else now,
            summary=text,
            evidence=quoted(hits),
        )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        closed = [
            rank.rank
            for rank in job.alive_ranks()
            if rank.tree is not None
            and rank.tree.open_files is None
            and rank.placement.launcher != "captured"
        ]
        if closed:
            yield NotChecked(
                f"open files of {format_ranks(closed)}",
                "/proc/PID/fd cannot be read",
                "run diag as the user of the ranks, or give it CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
            )


def _numbers(ranks: Iterable[RankView]) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for rank in ranks))


def _used_share(rank: RankView) -> float:
    return 1 - rank.shm.available_bytes / rank.shm.size_bytes if rank.shm and rank.shm.size_bytes else 0.0


def _is_small(rank: RankView) -> bool:
    return rank.shm is not None and 0 < rank.shm.size_bytes <= _SHM_TOO_SMALL_BYTES


def _shm_size(ranks: Sequence[RankView]) -> str:
    """Of the first of them."""
    shm = ranks[0].shm if ranks else None
    if shm is None:
        return "/dev/shm ran out"
    return f"/dev/shm is {format_bytes(shm.size_bytes)} with {format_bytes(shm.available_bytes)} free"


def _of_bus_error(rank: RankView) -> bool:
    end = rank.exit
    return end is not None and (end.signal == signal.SIGBUS or end.exit_code == _BUS_ERROR_CODE)


def _with_reading(ranks: list[RankView], job: JobView) -> list[RankView]:
    """Those whose /dev/shm was read; where none lived that long the others of their hosts, most often of the
    same container."""
    hosts = {rank.placement.host for rank in ranks}
    others = [rank for rank in job.ranks.values() if rank.placement.host in hosts]
    read = (
        [rank for rank in some if rank.shm is not None and rank.shm.size_bytes] for some in (ranks, others)
    )
    return next(filter(None, read), [])


def _disk_is_full(job: JobView) -> bool:
    """A mapped file there gives a bus error too."""
    return any(
        space.purpose in ("save", "tmp") and space.total_bytes and space.available_bytes < _DISK_FULL_BYTES
        for _, space in job.machine.disks.values()
    )


def _fd_ratio(rank: RankView) -> float:
    limit = rank.limits.get("Max open files") if rank.limits else None
    if not limit or rank.tree is None or rank.tree.open_files is None:
        return 0.0
    return rank.tree.open_files / limit


def _has_workers(rank: RankView) -> bool:
    return rank.tree is not None and any(child.comm == "pt_data_worker" for child in rank.tree.children)
