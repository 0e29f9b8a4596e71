"""Memory that was refused, not taken away: a failed allocation, fork or pinned allocation that ended a rank."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from diag.detectors.echoed_errors import only_quoted
from diag.detectors.findings import LinePattern
from diag.model.observations import HostMemory, KernelRefusal, LogLine
from diag.state.rank_view import RankView
from diag.state.view import JobView

# The line of a traceback that names the exception.
_EXCEPTION = re.compile(r"^(?:\[rank\d+\]: ?)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b")
# Frames of a fork in the traceback above it. CPython 3.10-3.13:
#   File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch
#     self.pid = os.fork()
#   File "/usr/lib/python3.11/subprocess.py", line 1863, in _execute_child
#     self.pid = _fork_exec(
_FORKS = ("os.fork()", "popen_fork.py", "_fork_exec(", "fork_exec(", "_posixsubprocess", "os.forkpty()")
_TRIED = re.compile(
    r"tried to allocate (\d{1,18}) bytes|Unable to allocate ([\d.]{1,12}) (KiB|MiB|GiB|TiB) for an array"
)
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_LAST_WORD_SECONDS = 60.0
_JUST_BEFORE_SECONDS = 5.0
_TOGETHER_SECONDS = 0.3  # of the first death: those are no victims of it
_TRACEBACK_LINES = 30
STRICT = 2


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was refused, and why as far as that is known: `limit` is (its name, bytes)."""

    cause: str
    ranks: tuple[int, ...]
    at: float
    lines: tuple[tuple[int | None, float, str], ...]
    limit: tuple[str, int] | None = None
    size_bytes: int | None = None


class Refusals:
    """Handed lines of output and of the kernel's log."""

    def __init__(self) -> None:
        self._allocation = LinePattern.named("allocation")
        self._lines: dict[int | None, tuple[float, str]] = {}
        self._kernel: list[tuple[float, KernelRefusal]] = []

    def observe(self, at: float, fact: LogLine | KernelRefusal) -> None:
        if isinstance(fact, LogLine):
            if not fact.bar and len(self._lines) < 4096 and self._allocation.matches(fact.text):
                self._lines[fact.rank] = (at, fact.text)  # the last one: what was survived is over
        elif fact.what == "overcommit":
            self._kernel = [*self._kernel[-63:], (at, fact)]

    def decide(self, job: JobView, host: HostMemory | None) -> Refusal | None:
        """What ended a rank; None for what was survived."""
        fatal = self._fatal(job, self._lines)
        if not fatal:
            fatal = self._fatal(job, job.gpu_faults.pinned.ranks)
            return _refusal("pinned_host", _with_ranks(job, fatal)) if fatal else None
        fatal = _with_ranks(job, fatal)
        ranks = [job.ranks[rank] for rank, _, _ in fatal if rank is not None and rank in job.ranks] or list(
            job.ranks.values()
        )
        pids = {rank.placement.pid for rank in ranks}
        refused = any(
            at >= fatal[0][1] - _LAST_WORD_SECONDS and fact.pid in pids for at, fact in self._kernel
        )
        limit = None if refused else _own_limit(ranks)
        if limit is not None:
            return _refusal("rlimit_as", fatal, limit)
        may_be_strict = host is None or host.overcommit in (None, STRICT)
        if (refused or may_be_strict) and any(_in_fork(job, rank, text) for rank, _, text in fatal):
            return _refusal("fork_overcommit", fatal)
        return _refusal("allocation_refused", fatal)

    def _fatal(
        self, job: JobView, lines: dict[int | None, tuple[float, str]]
    ) -> list[tuple[int | None, float, str]]:
        return sorted(
            ((rank, at, text) for rank, (at, text) in lines.items() if self._ended(job, rank, at, text)),
            key=lambda item: item[1],
        )

    def _ended(self, job: JobView, rank: int | None, at: float, text: str) -> bool:
        """Whether it was this that ended the rank (any, where the line names none): it failed soon
        after, and printed nothing worse in between."""
        if rank is None:
            ended = bool(job.returncode) or any(_soon(job, one, at) for one in job.ranks.values())
            return ended and not only_quoted(job, text)
        state = job.ranks.get(rank)
        if state is None or not _soon(job, state, at):
            return False
        errors = [line for line in state.tail if _EXCEPTION.match(line)]
        return (
            not errors
            or self._allocation.matches(errors[-1])
            or text in errors[-1]
            or (state.exited_at or at) - at <= _JUST_BEFORE_SECONDS
        )


def first_failed(job: JobView, at: float) -> tuple[int, ...]:
    """Whose line it was that names no rank: of the rank that failed by itself soon after it, before the
    launcher ended others."""
    failed = sorted(
        (rank.exited_at or at, rank.rank)
        for rank in job.ranks.values()
        if _soon(job, rank, at)
        and rank.exit is not None
        and rank.exit.signal not in (signal.SIGTERM, signal.SIGINT)
    )
    return tuple(sorted(rank for when, rank in failed if when - failed[0][0] <= _TOGETHER_SECONDS))


def _with_ranks(
    job: JobView, lines: list[tuple[int | None, float, str]]
) -> list[tuple[int | None, float, str]]:
    named: list[tuple[int | None, float, str]] = []
    for rank, at, text in lines:
        named += (
            [(rank, at, text)]
            if rank is not None
            else [(one, at, text) for one in first_failed(job, at) or (None,)]
        )
    return named


def _refusal(
    cause: str, lines: list[tuple[int | None, float, str]], limit: tuple[str, int] | None = None
) -> Refusal:
    ranks = tuple(sorted({rank for rank, _, _ in lines if rank is not None}))
    return Refusal(cause, ranks, lines[0][1], tuple(lines[:3]), limit, _tried(lines[0][2]))


def _tried(text: str) -> int | None:
    match = _TRIED.search(text)
    if match is None:
        return None
    return int(match[1]) if match[1] else int(float(match[2]) * _UNITS[match[3]])


def _soon(job: JobView, rank: RankView, at: float) -> bool:
    code = rank.exit
    if code is None or code.exit_code == 0:
        return False
    if code.exit_code is None and code.signal is None and not job.returncode:
        return False  # how it ended could not be read: the launcher's end shows it
    return -_JUST_BEFORE_SECONDS <= (rank.exited_at or at) - at <= _LAST_WORD_SECONDS


def _own_limit(ranks: list[RankView]) -> tuple[str, int] | None:
    for rank in ranks:
        for name in ("Max address space", "Max data size"):
            limit = rank.limits.get(name) if rank.limits else None
            if limit is not None:
                return name, limit
    return None


def _in_fork(job: JobView, rank: int | None, text: str) -> bool:
    tails = [list(job.ranks[rank].tail)] if rank is not None and rank in job.ranks else []
    lines = next((tail for tail in tails if text in tail), list(job.log.tail))
    where = next((number for number in range(len(lines) - 1, -1, -1) if lines[number] == text), len(lines))
    return any(word in line for line in lines[max(0, where - _TRACEBACK_LINES) : where] for word in _FORKS)
