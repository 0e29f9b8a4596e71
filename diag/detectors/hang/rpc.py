"""Ranks that wait in torch's rpc.shutdown() serve the others until all have come there: who still runs a call of theirs, and
whether anybody is left to answer it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diag.detectors.hang.kernel_waits import with_kernel_waits
from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Note, Verdict, blaming
from diag.model import Confidence
from diag.model.observations import ThreadStack
from diag.state.own_code import own_frames
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.text.units import format_ranks

# torch 1.8-2.13: shutdown calls _wait_all_workers, _all_gather; a call of another rank begins in _run_function.
_API, _INTERNAL = "torch/distributed/rpc/api.py", "torch/distributed/rpc/internal.py"
_SHUTDOWN = ("shutdown", "_wait_all_workers")
# What is said of such a rank where nothing is known of RPC.
_OPEN = ("lock_not_released", "nobody_releases_lock", "nobody_sets", "teardown_blocked")
_AT_REST_CPU_RATIO = 0.05  # of a core
# The names that TensorPipe gives its threads, which only carry what others send: that of shared memory never sleeps.
_CARRIES = "TP_"
_SHOWN = 3


def with_calls_of_rpc(verdict: Verdict, job: JobView) -> Verdict:
    culprits = job.ranks.known(verdict.culprits)
    if verdict.cause not in _OPEN or not culprits or not all(map(_serves, culprits)):
        return verdict
    ranks = job.ranks.known(tuple(sorted(verdict.everyone)))
    if any(classify_rank(rank) in WAITS for rank in ranks):
        return verdict  # who waits in a collective waits for the culprit itself
    calls = [(rank, thread) for rank in ranks for thread in _calls_in(rank)]
    at_work = [
        (rank, thread) for rank, thread in calls if _is_known(rank, thread) and not _rests(rank, thread)
    ]
    if at_work:
        blamed = tuple(sorted({rank.rank for rank, _ in at_work}))
        found = blaming(verdict, blamed, "peer_not_joined", "rpc_call_goes_on", Confidence.MEDIUM, chain=None)
        return _told(found, at_work, job, "")
    elsewhere = tuple(rank.rank for rank in ranks if not _serves(rank) and _is_elsewhere(rank))
    if elsewhere:
        found = blaming(
            verdict,
            elsewhere,
            "peer_not_joined",
            "not_in_collective",
            Confidence.MEDIUM,
            chain=None,
            words="",
        )
        return with_kernel_waits(found, job)
    everyone = tuple(rank.rank for rank in ranks)
    found = replace(
        verdict, klass="unknown", culprits=(), waiting=everyone, chain=None, words="", by_kernel=False
    )
    if not all(map(_is_idle, ranks)):
        return replace(found, cause="all_ranks_wait")
    found = replace(found, cause="rpc_never_answered")
    nobody = "no thread of any rank runs a call that would give an answer"
    return _told(found, calls, job, nobody)


def _serves(rank: RankView) -> bool:
    main = rank.judged
    return main is not None and any(
        one.function in _SHUTDOWN and one.file.endswith(_API) for one in main.frames
    )


def _calls_in(rank: RankView) -> Iterator[ThreadStack]:
    """Threads that run a call of another rank."""
    for thread in rank.stack.threads if rank.stack is not None else ():
        if any(one.function == "_run_function" and one.file.endswith(_INTERNAL) for one in thread.frames):
            yield thread


def _rests(rank: RankView, thread: ThreadStack | None) -> bool:
    """Waits without a limit of time for what only another thread gives, by the kernel."""
    known = rank.thread_wait(tid=thread.thread_id) if thread is not None else None
    return known is not None and known.same and known.wait.kind == "condition" and not known.wait.timed


def _is_known(rank: RankView, thread: ThreadStack) -> bool:
    return rank.thread_wait(tid=thread.thread_id) is not None


def _is_elsewhere(rank: RankView) -> bool:
    main = rank.judged
    return main is not None and _is_known(rank, main) and not _rests(rank, main)


def _is_idle(rank: RankView) -> bool:
    process = rank.process_waits()
    return (
        process is not None
        and not process.threads_left_out
        and all(
            one.cpu_ratio is not None and one.cpu_ratio <= _AT_REST_CPU_RATIO
            for one in process.threads
            if not one.name.startswith(_CARRIES)
        )
    )


def _told(verdict: Verdict, calls: list[tuple[RankView, ThreadStack]], job: JobView, nobody: str) -> Verdict:
    cwd = job.run.cwd
    places: dict[str, list[int]] = {}
    for rank, thread in calls:
        own = own_frames(thread.frames)
        if own:
            places.setdefault(format_frame(own[-1], cwd), []).append(rank.rank)
    does = (
        "runs a call of another rank (RPC)" if verdict.culprits else "waits in a call of another rank (RPC)"
    )
    shown = [
        f"a thread of {format_ranks(sorted(set(ranks)))} {does} in {place}"
        for place, ranks in [*places.items()][:_SHOWN]
    ]
    if nobody and shown:
        nobody = f"and {nobody}"
    words = ", ".join(filter(None, (*shown, nobody)))
    notes = [
        Note(
            rank.stack.how,
            f"{thread.name or 'thread'} (tid {thread.thread_id}): {_path(thread, cwd)}",
            rank.rank,
        )
        for rank, thread in calls[:_SHOWN]
        if rank.stack is not None
    ]
    return replace(verdict, words=words).noted(*notes)


def _path(thread: ThreadStack, cwd: str) -> str:
    return " < ".join(format_frame(one, cwd) for one in reversed(thread.frames[-4:]))
