"""What ended in a rank, and what it printed last, put into the verdict: a thread that died of an exception, a child
that is gone while the rank waits for its result, a traceback just before the silence.

A thread or child that ended explains a rank that waits for somebody's word; alone it blames no rank that waits for
its peers. A traceback after which the rank went on, or that it printed and survived before, is no last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from diag.detectors.echoed_errors import CASCADE
from diag.detectors.hang.ended_words import format_end
from diag.detectors.hang.kernel_causes import kernel_cause
from diag.detectors.hang.kernel_waits import lasting_wait
from diag.detectors.hang.outcries import Outcry
from diag.detectors.hang.partings import head_of, path_of
from diag.detectors.hang.patience import patience
from diag.detectors.hang.verdict import Note, Verdict, at_most, blaming
from diag.model import Confidence
from diag.state.rank_view import RankView
from diag.state.stack_activity import child_role, is_in_lock
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

# Causes that say no more than that the rank waits, or is, somewhere.
_ENDING = ("teardown_blocked", "left_before_the_others")
_WORD_OF_SOMEBODY = ("condition", "semaphore", "pipe_read", "unix_receive", "poll")  # of `Wait.kind`
_THREAD_SECONDS = 600.0  # before the silence: a queue takes a while to run full, or empty
_LONE_SECONDS = 30.0
_PRINTED_SECONDS = 180.0
_LOST_SECONDS = 60.0  # between two stacks of a rank that is calm
# A stack is read every few seconds: what moved so soon after the words moved before them.
_MOVED_SECONDS = 15.0
_TOGETHER_SECONDS = 5.0
_SEEN_SECONDS = 15.0  # between the end of a process, and that it is missed
_NUMBERS = re.compile(r"\d+|0x[0-9a-f]+")


def with_last_words(verdict: Verdict, outcries: Iterable[Outcry], now: float, job: JobView) -> Verdict:
    if verdict.klass in ("peer_lost", "stopped"):
        return verdict
    heard = list(outcries)
    if not verdict.culprits:
        return _who_cried_out(verdict, heard, now, job) if verdict.klass == "unknown" else verdict
    rank = verdict.culprit(job)
    if rank is None:
        return verdict
    ended = _ended_thread(rank, heard, verdict.since, now, job)
    gone = _ended_worker(rank, heard, verdict.since, now) if not ended else ""
    last = _last_of(rank, heard, verdict.since, job)[-1:]
    quoted = [_quote(one, now) for one in last]
    shown = [text for text in (ended, gone) if text]
    verdict = verdict.noted(*(Note("output", text, rank.rank) for text in (*shown, *quoted)))
    is_open = verdict.is_of("outside", "lock") or verdict.cause == "unknown"
    if shown and is_open and verdict.blamed_child is None and _awaits_word(rank, verdict, job):
        return replace(
            verdict,
            klass="peer_not_joined" if verdict.waiting else "unknown",
            cause="thread_ended" if ended else "worker_ended",
            confidence=at_most(verdict.confidence, Confidence.MEDIUM),
            words=shown[0],
        )
    if last and verdict.cause == "teardown_blocked" and last[0].kind == "traceback":
        words = (
            f'it is ending after "{last[0].error}", printed {format_seconds(max(0.0, now - last[0].at))} ago'
        )
        return replace(verdict, cause="exception_before_shutdown", words=words)
    return replace(verdict, words=quoted[0]) if quoted and (is_open or verdict.cause in _ENDING) else verdict


def _who_cried_out(verdict: Verdict, heard: list[Outcry], now: float, job: JobView) -> Verdict:
    """Everybody waits: who printed an exception just before waits for something that no other came to. No sooner than
    they would be reported without a culprit: a long kernel looks the same, and an exception may have been handled."""
    if now - verdict.since < patience(job, verdict):
        return verdict
    ranks = job.ranks.known(verdict.waiting)
    found = {rank.rank: words[-1] for rank in ranks if (words := _last_of(rank, heard, verdict.since, job))}
    culprits = tuple(found)
    if not culprits or 2 * len(culprits) > len(ranks):
        return verdict
    noted = verdict.noted(*(Note("output", _quote(found[number], now), number) for number in culprits[:3]))
    quoted = _quote(found[culprits[0]], now)
    cause = "exception_before_wait"
    return blaming(noted, culprits, "peer_not_joined", cause, Confidence.MEDIUM, words=quoted)


def _last_of(rank: RankView, heard: list[Outcry], since: float, job: JobView) -> list[Outcry]:
    """What it printed itself shortly before it stood still, and never survived before."""
    own = [one for one in heard if one.kind in ("traceback", "native", "nccl") and one.by(rank.rank)]
    own = [one for one in own if one.at >= rank.found_at and not CASCADE.search(one.error)]
    step_at = job.progress.iteration_at or 0.0
    late = 1.5 * (job.progress.step_p95() or 0.0) + 2.0  # others report a step that they made before
    moved_at = rank.last_moved(("stack", "cpu", "printed"))
    survived = {_bare(one) for one in own if max(moved_at, step_at) > one.at + _MOVED_SECONDS}
    return [
        one
        for one in own
        if one.at >= since - _PRINTED_SECONDS
        and step_at <= one.at + late
        and moved_at <= one.at + _MOVED_SECONDS
        and _bare(one) not in survived
    ]


def _bare(one: Outcry) -> str:
    return _NUMBERS.sub("", one.error)


def _quote(one: Outcry, now: float) -> str:
    return f'it printed "{one.error}" {format_seconds(max(0.0, now - one.at))} ago'


def _ended_thread(rank: RankView, heard: list[Outcry], since: float, now: float, job: JobView) -> str:
    """The last thread, or child process, of this rank that an exception ended, and that no other has replaced."""
    threads = {thread.name for thread in rank.stack.threads} if rank.stack is not None else set()
    for one in reversed(heard):
        if one.at < max(rank.found_at, since - _THREAD_SECONDS):
            break
        if one.kind not in ("thread", "process") or one.name in threads:
            continue
        what = f"{one.kind} {one.name} ended with {one.error} {format_seconds(max(0.0, now - one.at))} ago"
        lost = [other.rank for other in job.ranks.values() if _lost_thread(other, one)]
        if one.by(rank.rank) or (one.rank is None and lost == [rank.rank]):
            return f"its {what}"
        if one.may_be_by(rank.rank) and not lost:
            return f"by the output that the ranks share, {what}"
    return ""


def _lost_thread(rank: RankView, one: Outcry) -> bool:
    return one.kind == "thread" and any(
        name == one.name and abs(at - one.at) < _LOST_SECONDS for at, name in rank.ended_threads
    )


def _ended_worker(rank: RankView, heard: list[Outcry], since: float, now: float) -> str:
    """A child that ended alone while others of its kind live, or just now where it was the only one. A pool that was
    shut down ends all of them together; a program that was run, and ended, is no worker; of its DataLoader's
    workers torch itself reports the death."""
    if rank.tree is None or not rank.ended_children:
        return ""
    at, pid, comm = rank.ended_children[-1]
    sample = rank.sample(pid)
    role = child_role(sample) if sample is not None else "child process"
    if (comm != rank.tree.main.comm and sample is None) or role == "DataLoader worker":
        return ""
    alike = [when for when, _, name in rank.ended_children if name == comm]
    together = sum(at - when < _TOGETHER_SECONDS for when in alike)
    left = sum(child.comm == comm and child.state not in "ZX" for child in rank.tree.children)
    oldest = since - (_THREAD_SECONDS if left else _LONE_SECONDS)
    if at < oldest or together > max(1, left) or len(alike) > 3 * together:
        return ""  # long ago; a shutdown; workers that come and go
    of = next(
        (
            f" of {one.error}, by the kernel's log"
            for one in reversed(heard)
            if (one.kind, one.name) == ("kernel", str(pid)) and abs(one.at - at) < _SEEN_SECONDS
        ),
        "",
    )
    when = f"{format_seconds(max(0.0, now - at))} ago"
    end = of or format_end(rank, pid, at)
    limited = _limited(rank) if not end or end.endswith("SIGXCPU") else ""
    return f"its {role} pid {pid} ended {when}{end}{limited}"


def _limited(rank: RankView) -> str:
    """Those that are left have the limit of the one that is gone: a pool sets it in each of its processes."""
    processes = rank.waits.processes if rank.waits is not None else ()
    children = [one for one in processes if one.parent == rank.placement.pid]
    limits = [limit for one in children if (limit := one.cpu_limit_seconds) is not None]
    if not limits or len(limits) < len(children):
        return ""
    return f" (the kernel ends each of its kind after {format_seconds(min(limits))} of CPU time, RLIMIT_CPU)"


def _awaits_word(rank: RankView, verdict: Verdict, job: JobView) -> bool:
    """By the kernel, where it was asked, else by the frames: it waits for what another thread or process would have
    told it, and nobody is known who still could."""
    chain = lasting_wait(rank, verdict.since, job)
    if chain is None:
        return rank.judged is not None and is_in_lock(rank.judged)
    known = kernel_cause(chain)
    return chain.steps[0].wait.kind in _WORD_OF_SOMEBODY and (
        not known
        or known in ("pipe_without_other_end", "threads_wait_for_each_other", "lock_of_a_lone_thread")
    )


# --- a rank that ended, while the others poll

# Ours: whoever went on for longer after that one had ended did not need it.
_SOON_SECONDS = 30.0


def with_ended_ranks(verdict: Verdict, job: JobView) -> Verdict:
    """All others poll in a loop of their own, for the same thing, since a rank ended well. One rank that works on alone
    after the others, and ranks that look for different things, tell nothing: they wait for somebody outside."""
    pollers = job.ranks.known(verdict.culprits)
    if not verdict.is_of("polls") or verdict.waiting or len(pollers) < 2:
        return verdict
    places = {(frame.file, frame.function) for rank in pollers for frame in path_of(rank.judged)[-1:]}
    ended = tuple(sorted(rank.rank for rank in job.ranks.values() if _ended_well(rank, before=verdict.since)))
    if not ended or len(places) != 1:
        return verdict
    loop = _loop(pollers[0], job)
    since = max([verdict.since, *(job.ranks[number].exited_at or 0.0 for number in ended)])
    return replace(
        verdict,
        klass="peer_lost",
        culprits=ended,
        waiting=verdict.culprits,
        cause="left_while_others_poll",
        since=since,
        confidence=Confidence.MEDIUM,
        chain=None,
        by_kernel=False,
        reason=None,
        words=f"{format_ranks(verdict.culprits)} sleep again and again in the loop {loop}" if loop else "",
    )


def _ended_well(rank: RankView, before: float) -> bool:
    code = rank.exit.exit_code if rank.exit is not None else None
    return code == 0 and abs(before - (rank.exited_at or 0.0)) <= _SOON_SECONDS


def _loop(rank: RankView, job: JobView) -> str:
    around = job.program.around(path_of(rank.judged))
    return next((head_of(block, place.file, job.run.cwd) for place, block in around if block.is_loop), "")
