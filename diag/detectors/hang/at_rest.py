"""Who works, and who is at rest: a culprit that computes, the process that ranks ask for an answer, and all ranks at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diag.detectors.hang.pipeline import awaited_message
from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Verdict
from diag.model import Confidence
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity, read_stack
from diag.state.view import JobView

_FRESH_SECONDS = 45.0  # under suspicion the waits are read every 30 s
_SILENT_SECONDS = 30.0  # ours: longer than TCP takes to send again what a crowded network has lost
_LATE_SECONDS = 15.0  # a stack may have been seen to be new so long after the call was made
_REST_CPU_RATIO = 0.02  # of a core: gloo's own thread looks 100 times a second, which takes 0.003
# Of Python threads that only what comes from elsewhere lets go on: none of them will send by itself.
_PASSIVE = ("condition", "semaphore", "join", "poll", "tcp_accept", "signal")


def with_nobody_sending(verdict: Verdict, job: JobView, now: float) -> Verdict:
    """Every rank of the job is in a call of a process group over sockets, no thread of any of them works, and no byte
    moves between them. A rank of another node, one whose waits may not be read, and one that may use a GPU, where a
    kernel moves nothing that is seen here, prove nothing."""
    if verdict.cause != "all_ranks_wait" or verdict.culprits:
        return verdict
    ranks = [job.ranks[number] for number in verdict.waiting]
    if len(ranks) > 1 and all(awaited_message(rank, job) for rank in ranks):
        return replace(verdict, klass="collective_mismatch", cause="message_not_met")
    processes = [process for rank in ranks if (process := _at_rest(rank, verdict.since, now)) is not None]
    if len(processes) < max(2, len(ranks)) or not _are_silent(processes):
        return verdict
    return replace(verdict, cause="nobody_sends")


def _at_rest(rank: RankView, since: float, now: float) -> ProcessWaits | None:
    """Its process, where none of its threads works and none of Python's will go on by itself."""
    process = rank.process_waits()
    judged, known = rank.judged, rank.stack.threads if rank.stack is not None else ()
    if process is None or judged is None or now - rank.waits_at > _FRESH_SECONDS or not _is_in_gloo(rank):
        return None
    threads = {one.tid: one for one in process.threads}
    works = any(one.cpu_ratio is None or one.cpu_ratio > _REST_CPU_RATIO for one in process.threads)
    python = [threads.get(one.thread_id) for one in known]
    passive = all(one is not None and one.wait.kind in _PASSIVE for one in python)
    rests = passive and not works and not process.threads_left_out and rank.ran_at < since + _LATE_SECONDS
    return process if rests else None


def _is_in_gloo(rank: RankView) -> bool:
    """In a call that waits for peers, and all that its recorder knows of was called in gloo."""
    entries = rank.recorder.entries if rank.recorder is not None else ()
    waits = rank.activity is not None and rank.activity.waits_for_peers
    gpu = rank.on_gpu or rank.gpu_index is not None
    return waits and not gpu and bool(entries) and all(one.backend == "gloo" for one in entries)


def _are_silent(processes: list[ProcessWaits]) -> bool:
    """Each is connected to another of them, and over none of these connections anything came or is under way."""
    ends = {(wait.local, wait.peer) for process in processes for wait in _connections(process)}
    for process in processes:
        between = [wait for wait in _connections(process) if (wait.peer, wait.local) in ends]
        if not between or not all(map(_is_silent, between)):
            return False
    return True


def _connections(process: ProcessWaits) -> Iterator[Wait]:
    for thread in process.threads:
        for wait in (thread.wait, *thread.wait.watched):
            if wait.kind in ("tcp_receive", "tcp_send") and wait.peer:
                yield wait


def _is_silent(wait: Wait) -> bool:
    silent = wait.silent_seconds is not None and wait.silent_seconds >= _SILENT_SECONDS
    return silent and not (wait.unsent_bytes or wait.unread_bytes)


# --- the process that is asked for an answer

_ASKED = ("external_service", "process_is_silent")  # causes
_NOT_ACCEPTED = "connection_not_accepted"  # one too
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
    if first is not None and first.not_accepted and verdict.cause in (*_ASKED, _NOT_ACCEPTED):
        cause = "server_keeps_connection" if _keeps_one_of_those_that_wait(verdict, job) else _NOT_ACCEPTED
        return replace(verdict, cause=cause, by_kernel=True)
    if verdict.cause not in _ASKED or first is None or first.kind not in _RECEIVES:
        return verdict
    rank = verdict.culprit(job)
    if rank is None or len(first.pids) != 1 or any(other.rank is not None for other in first.others):
        return verdict
    process = rank.process_waits(*first.pids)
    if process is None or not _rests(process, rank, job):
        return verdict
    cause, words = "service_is_idle", verdict.words
    if (reader := _reads_from(process, first)) is not None:
        whose = f"{f'thread {reader.name} (tid {reader.tid})' if reader.tid != process.pid else 'the main thread'} of pid {process.pid}"
        cause, words = (
            "both_ends_receive",
            f"{whose} waits for data from the other end of that very connection",
        )
        words += f", and {verdict.words}" if verdict.words else ""
    words = words or f"pid {process.pid} is itself idle: it waits for new requests, or for a lock"
    return replace(verdict, cause=cause, confidence=Confidence.MEDIUM, by_kernel=True, words=words)


def _reads_from(process: ProcessWaits, asked: Wait) -> ThreadWait | None:
    """The thread that does nothing but wait for what this asker sends next, on the connection on which that waits."""
    ends = (asked.peer, asked.local)
    return next(
        (
            one
            for one in process.threads
            if all(ends) and one.wait.kind in _RECEIVES and (one.wait.local, one.wait.peer) == ends
        ),
        None,
    )


def _keeps_one_of_those_that_wait(verdict: Verdict, job: JobView) -> bool:
    """The server reads from a connection of ranks that stand still with the culprit: nothing will come there before it
    gets its answer."""
    steps = verdict.chain.steps if verdict.chain is not None else ()
    wait = steps[1].wait if len(steps) > 1 else None
    if wait is None or wait.kind not in _RECEIVES or wait.timed or wait.unread_bytes or not wait.others:
        return False
    numbers = {other.rank for other in wait.others}
    at_rest = {rank.rank for rank in job.ranks.known(verdict.waiting) if classify_rank(rank) in WAITS}
    return numbers <= at_rest | {*verdict.culprits}


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
    return wait.kind in _RECEIVES and bool(wait.pids) and wait.pids <= askers and not wait.unread_bytes


def _is_own(wait: Wait, pid: int) -> bool:
    """Its own wake-up."""
    return (
        wait.pids == {pid} or wait.dead_end == "only_self" or (wait.kind == "other" and wait.path == _WAKE_UP)
    )


# --- a culprit of which neither a known function nor the kernel says what it waits for

_COMPUTES_CPU_RATIO = 0.05  # of a crowded machine that is all that one may get


def with_work(verdict: Verdict, job: JobView) -> Verdict:
    ranks = job.ranks.known(verdict.culprits)
    if verdict.cause == "dataloader_main_process" and ranks and all(map(_computes_its_batch, ranks)):
        return replace(verdict, cause="busy", busy=True)
    if verdict.cause != "not_in_collective" or not ranks:
        return verdict
    if all(map(_synchronizes, ranks)):
        return replace(verdict, klass="gpu_side", cause="waits_for_gpu")
    if not all(map(_computes, ranks)):
        calls = all(rank.reading is not None and rank.reading.own is not None for rank in ranks)
        return replace(verdict, cause="call_does_not_return") if calls else verdict
    in_c = all(rank.activity is Activity.GPU_SYNC for rank in ranks)
    return replace(verdict, cause="busy_in_c" if in_c else "busy", busy=True)


def _synchronizes(rank: RankView) -> bool:
    """By its frames. One that spins in C without any may as well compute."""
    judged = rank.judged
    return judged is not None and read_stack(judged).activity is Activity.GPU_SYNC


def _computes_its_batch(rank: RankView) -> bool:
    """In code of the program's own that the DataLoader has called in the rank itself: of the data set or the sampler."""
    return rank.reading is not None and rank.reading.called_back is not None and _computes(rank)


def _computes(rank: RankView) -> bool:
    runs = rank.tree is not None and rank.tree.main.state == "R"
    return runs or (rank.main_cpu_ratio or 0.0) > _COMPUTES_CPU_RATIO
