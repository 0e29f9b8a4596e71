"""Whether the process that ranks ask for an answer is at rest: it has their request, and waits for nothing but the next
one."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.verdict import Verdict
from diag.model import Confidence
from diag.model.observations.waits import ProcessWaits, Wait
from diag.state.rank_view import RankView
from diag.state.view import JobView

_ASKED = ("external_service", "process_is_silent")  # causes
_RECEIVES = ("tcp_receive", "unix_receive")
_IDLE_THREADS = ("condition", "tcp_accept", "signal")  # of a pool, of a server that takes what comes
_LOOKS_SECONDS = (
    300.0  # ours: a timer that is farther away is no pause in its work, but somebody's time limit
)
_WAKE_UP = "anon_inode:[eventfd]"


def with_service_at_rest(verdict: Verdict, job: JobView) -> Verdict:
    """By the kernel: every thread of the process waits for connections, for what its askers send next, or for a lock.
    One that computes, sleeps for a moment, or asks somebody else in its turn is at work, and so is one that has
    started others."""
    steps = verdict.chain.steps if verdict.chain is not None else ()
    first = steps[0].wait if steps else None
    if verdict.cause not in _ASKED or first is None or first.kind not in _RECEIVES:
        return verdict
    pids = {other.pid for other in first.others}
    rank = job.ranks.get(verdict.culprits[0]) if verdict.culprits else None
    if rank is None or len(pids) != 1 or any(other.rank is not None for other in first.others):
        return verdict
    process = rank.waits.process(pids.pop()) if rank.waits is not None else None
    if process is None or not _rests(process, rank, job):
        return verdict
    words = f"pid {process.pid} itself works at nothing: it waits for new requests, or for a lock"
    return replace(
        verdict,
        cause="service_is_idle",
        confidence=Confidence.MEDIUM,
        by_kernel=True,
        words=verdict.words or words,
    )


def _rests(process: ProcessWaits, rank: RankView, job: JobView) -> bool:
    askers = {one.placement.pid for one in job.alive_ranks()}
    below = rank.waits.processes if rank.waits is not None else ()
    if process.job or process.threads_left_out or any(one.parent == process.pid for one in below):
        return False
    return all(_idles(thread.wait, process.pid, askers) for thread in process.threads)


def _idles(wait: Wait, pid: int, askers: set[int]) -> bool:
    if wait.kind == "poll":
        passes = wait.seconds is not None and wait.seconds < _LOOKS_SECONDS
        only_listens = all(one.kind == "tcp_accept" or _is_own(one, pid) for one in wait.watched)
        if not wait.watched or (passes and not only_listens):
            return False
        return all(_comes_from_askers(one, pid, askers) for one in wait.watched)
    if wait.kind in _RECEIVES:
        return _comes_from_askers(wait, pid, askers)
    return wait.kind in _IDLE_THREADS and (wait.kind == "tcp_accept" or not wait.timed)


def _comes_from_askers(wait: Wait, pid: int, askers: set[int]) -> bool:
    """It has read all that they have sent."""
    if wait.kind == "tcp_accept" or _is_own(wait, pid):
        return True
    others = {other.pid for other in wait.others}
    return wait.kind in _RECEIVES and bool(others) and others <= askers and not wait.unread_bytes


def _is_own(wait: Wait, pid: int) -> bool:
    """Its own wake-up."""
    own = bool(wait.others) and {other.pid for other in wait.others} == {pid}
    return own or wait.dead_end == "only_self" or (wait.kind == "other" and wait.path == _WAKE_UP)
