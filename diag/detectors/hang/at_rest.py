"""Ranks that all wait to receive, while nobody sends: what the kernel shows of them leaves no other way to go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diag.detectors.hang.awaited_messages import awaited_message
from diag.detectors.hang.verdict import Verdict
from diag.model.observations.waits import ProcessWaits, Wait
from diag.state.rank_view import RankView
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
    process = rank.waits.process(rank.placement.pid) if rank.waits is not None else None
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
