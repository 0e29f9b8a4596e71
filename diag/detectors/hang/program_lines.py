"""What the program's own text adds to a verdict: the loop in which a rank polls, the handler of an exception that it is
in, the lock that it takes, and where ranks came apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diag.detectors.hang.call_words import waits_in_backward
from diag.detectors.hang.endless_waits import NOBODY
from diag.detectors.hang.left_out import with_call_left_out
from diag.detectors.hang.lock_circles import keeps_lock
from diag.detectors.hang.own_locks import is_inside, lock_taken
from diag.detectors.hang.partings import Parting, has_passed, head_of, parting, path_of
from diag.detectors.hang.pipeline import awaited_message
from diag.detectors.hang.rank_wait import LOCK_WAITS
from diag.detectors.hang.reasons import (
    called_by,
    goes_round,
    is_common,
    lock_of,
    loop_at,
    polls,
    search_of,
    tries_again,
)
from diag.detectors.hang.verdict import Asked, Note, Reason, Verdict, others
from diag.detectors.hang.wait_text import format_locked
from diag.model.observations import Block, Frame, ProgramPlace, ThreadStack
from diag.state.program import Program
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.state.wait_chain import Step
from diag.text.units import format_path

# Causes of ranks and workers that go round in a loop and get on.
_ROUND = ("dataloader_worker_slow", "goes_round")
# Other causes of ranks that may have come to another line than the others.
_PARTED = ("left_before_the_others", "waits_for_key")
# Causes that say as little of why as those that only have a place: its line may.
_BARE = ("lock_not_released", "nobody_releases_lock", *NOBODY.values())
_NOBODY = "nobody_releases_lock"
_MOST_CLAUSES = 2
_OF_ONE_SIDE = ("not_in_collective", "waits_at_store", "waits_for_key", "call_does_not_return")


def with_program_lines(verdict: Verdict, job: JobView) -> Verdict:
    """By the first culprit, and the first rank elsewhere; where nobody is to blame, by the first rank."""
    verdict, left_out = with_call_left_out(verdict, job)
    everybody = verdict.everyone
    rank = job.ranks.get(everybody[0]) if everybody else None
    if rank is None:
        return verdict
    thread = thread_of(rank, verdict)
    frames = path_of(thread)
    place = job.program.at(frames[-1] if frames else None)
    if place is None and not verdict.is_of("loop"):
        return verdict
    clauses: list[str] = []
    cwd = job.run.cwd
    if verdict.culprits:
        if place is not None:
            verdict = replace(verdict, notes=(Note("program", _shown(place, cwd), rank.rank), *verdict.notes))
        clauses += _handlers(
            frames, job.program, cwd
        )  # also of whoever called a function that is not read yet
    if (held := _locked(verdict, rank, thread, place)) is not None:
        verdict = replace(verdict, reason=held, cause=held.kind)
        clauses.append(held.words)
    elif (reason := _reason(verdict, thread, frames, place, job)) is not None:
        clauses += filter(None, (reason.words,))
        if verdict.cause == "sleeps":
            clauses += _zombies(rank)
        # of a child that computes it only gives the advice
        cause = verdict.cause if verdict.is_of("child_computes") else reason.kind
        verdict = replace(verdict, reason=reason, cause=cause)
    elif verdict.cause in _ROUND and (found := loop_at(frames, job.program)) is not None:
        clauses.append(f"it goes round in the loop {head_of(found[1], found[0].file, cwd)}")
    elif (
        place is not None
        and (verdict.is_of("outside", "lock") or verdict.cause == "dataloader_worker_blocked")
        and thread is not None
        and verdict.by_kernel <= (verdict.cause == _NOBODY)
    ):
        verdict = _with_lock(verdict, rank, thread, place, job)
    elif verdict.cause == "message_not_met" and (made := awaited_message(rank, job)):
        clauses.append(f"rank {rank.rank} waits for what `{made}` began")
    in_calls = verdict.is_of("calls")
    skipped = verdict.cause == "call_skipped"
    parted = left_out
    if left_out is None and (in_calls or verdict.is_of("place") or verdict.cause in _PARTED):
        passed = verdict.collectives.passed if verdict.collectives is not None else ()
        in_order = skipped and all(one.seen_next for one in passed)
        parted = parting(rank, everybody[1:], job, in_calls=in_calls, skipped=skipped, in_order=in_order)
    if parted is not None and (verdict.cause != "waits_for_key" or parted.kind in ("loop", "round")):
        clauses.append(parted.text)
        asked = Asked(parted.place, parted.heads) if parted.place is not None else None
        verdict = _apart(replace(verdict, parted=parted.for_good, asked=asked), parted)
    elif skipped and waits_in_backward(verdict, job) and has_passed(rank, verdict.waiting, job):
        verdict = replace(verdict, cause="gradient_left_out")
    bare = verdict.is_of("place") or verdict.cause in _BARE
    if verdict.culprits and bare and not clauses and place is not None:
        clauses.append(f"its line is `{place.text}`")
        if verdict.cause == "call_does_not_return" and (made := called_by(place, cwd)):
            clauses[-1] += f", where {made}"
    words = " and ".join(filter(None, (", ".join(clauses[:_MOST_CLAUSES]), verdict.words)))
    return keeps_lock(replace(verdict, words=words), rank, frames, job)


def _apart(verdict: Verdict, parted: Parting) -> Verdict:
    """Of calls that do not fit together those who took a way of their own, where they are fewer than the others. Of as
    many, either may have made the call that was due: unless they left a loop, or made it for the number that they have.
    """
    if verdict.cause == "all_ranks_wait" and parted.for_good:
        return replace(verdict, cause="ways_differ")
    everybody = verdict.everyone
    if parted.kind == "round" and {*parted.apart} == {*verdict.culprits} and verdict.cause in _OF_ONE_SIDE:
        return replace(verdict, cause="round_left_out")
    unlike = verdict.is_of("unlike_calls")
    if unlike and not parted.apart and 2 * len(verdict.culprits) == len(everybody):
        # nobody is to say who was to go round once more
        return replace(verdict, cause="calls_differ", culprits=tuple(sorted(everybody)), waiting=())
    if not unlike or {*parted.apart, *parted.others} != {*everybody}:
        return verdict
    ahead = len(parted.apart) - len(parted.others)
    if ahead > 0 or (ahead == 0 and not parted.kind):
        return verdict
    culprits = tuple(sorted(parted.apart))
    cause = {"loop": "left_the_loop", "round": "round_left_out", "rank": "call_of_some_ranks"}.get(
        parted.kind, verdict.cause
    )
    return replace(
        verdict,
        klass="collective_mismatch",
        cause=cause,
        culprits=culprits,
        waiting=others(everybody, culprits),
    )


def thread_of(rank: RankView, verdict: Verdict) -> ThreadStack | None:
    """The one to blame: of the rank, of its child, or the one that its main thread waits for."""
    if verdict.blamed_child is not None:
        child = rank.sample(verdict.blamed_child)
        return None if child is None else child.main
    last = verdict.chain.last if verdict.chain is not None else None
    if verdict.cause == "child_computes" and last is not None and last.process.pid in rank.child_stacks:
        return rank.child_stacks[last.process.pid][1].main
    if last is not None and last.process.pid == rank.placement.pid:
        return rank.thread_stack(last.process.pid, last.thread.tid) or rank.judged
    return rank.judged


def _shown(place: ProgramPlace, cwd: str) -> str:
    inside = ", ".join(
        f"{'the else of ' if block.kind == 'else' else ''}`{block.text}` (line {block.line})"
        for block in place.around[:3]
    )
    where = f"{format_path(place.file, cwd)}:{place.line}"
    return f"{where}: `{place.text}`" + (f" in {inside}" if inside else "")


def _handlers(frames: Sequence[Frame], program: Program, cwd: str) -> Iterator[str]:
    """What it is at only since an exception was caught."""
    if (caught := _caught(frames, program)) is not None:
        place, block = caught
        tried = f" of `{block.deciding[0]}`" if block.deciding else ""
        yield f"it has caught an exception at {head_of(block, place.file, cwd)}{tried}"


def _caught(frames: Sequence[Frame], program: Program) -> tuple[ProgramPlace, Block] | None:
    """The nearest handler around the innermost lines."""
    return next((one for one in program.around(frames) if one[1].kind == "except"), None)


def _reason(
    verdict: Verdict,
    thread: ThreadStack | None,
    frames: Sequence[Frame],
    place: ProgramPlace | None,
    job: JobView,
) -> Reason | None:
    cwd = job.run.cwd
    if verdict.cause == "stale_file_lock" and thread is not None and place is not None:
        return lock_of(thread, place, cwd)
    paths = {number: path_of(job.ranks[number].judged) for number in job.ranks}
    elsewhere = [path for number, path in paths.items() if number not in verdict.culprits]
    found = loop_at(frames, job.program)
    if found is not None and is_common(found[1], found[0], elsewhere, job.program):
        found = None
    if verdict.cause == "sleeps":
        caught = _caught(frames, job.program)
        reason = polls(*found, cwd) if found is not None else None
        if caught is not None and (reason is None or reason.kind in ("polls", "gets_on_slowly")):
            return replace(tries_again(caught[1]), words=reason.words if reason is not None else "")
        return reason
    if not verdict.is_of("computes", "child_computes") or not verdict.culprits:
        return None
    if verdict.is_of("computes") and any(
        not _at_one(frames, paths.get(other, [])) for other in verdict.culprits
    ):
        return None
    if place is not None and (reason := search_of(thread, place, cwd)) is not None:
        return reason
    return None if found is None else goes_round(*found, cwd)


def _locked(
    verdict: Verdict, rank: RankView, thread: ThreadStack | None, place: ProgramPlace | None
) -> Reason | None:
    """It sleeps in C, below a line that calls no sleep, or where it has caught an exception, while another process has
    locked a file that it has open: a database's call that tries again, or a loop around it."""
    last = verdict.chain.last if verdict.chain is not None else None
    if (
        verdict.cause not in ("sleeps", "tries_again")
        or last is None
        or not last.wait.others
        or thread is None
        or place is None
    ):
        return None
    inner = thread.frames[-1]
    if last.process.pid != rank.placement.pid:
        return None
    by_itself = (inner.file, inner.line) == (place.file, place.line) and "sleep" in place.text
    tried = any(block.kind == "except" for block in place.around)  # what it tries again has failed
    if (by_itself or inner.function == "sleep") and not tried:
        return None
    holder = rank.process_waits(last.wait.others[0].pid)
    main = holder.thread() if holder is not None else None
    step = Step(holder, main) if holder is not None and main is not None else None
    return Reason("file_locked", format_locked(last, step))


def _at_one(frames: Sequence[Frame], theirs: Sequence[Frame]) -> bool:
    """In one function."""
    pair = [(one[-1].file, one[-1].function) for one in (frames, theirs) if one]
    return len(pair) == 2 and pair[0] == pair[1]


def _zombies(rank: RankView) -> Iterator[str]:
    """A question about such a process (kill -0, its /proc folder) is answered as if it lived."""
    ended = [child.pid for child in rank.tree.children if child.state == "Z"] if rank.tree is not None else []
    if ended:
        yield f"its child process {ended[0]} has ended and is not waited for (a zombie: its pid still exists)"


# --- locks


def _with_lock(
    verdict: Verdict, rank: RankView, thread: ThreadStack, place: ProgramPlace, job: JobView
) -> Verdict:
    """Of a thread whose innermost line takes a lock, and which sleeps in one."""
    lock = lock_taken(thread.frames[-1], place)
    if not lock:
        return verdict
    if not _in_lock(rank, verdict.blamed_child):
        return verdict
    outer = thread.frames[:-1] if verdict.blamed_child is None else ()
    holds = next((frame for frame in reversed(outer) if is_inside(job.program.at(frame), place, lock)), None)
    if holds is not None:
        where = f"{format_path(holds.file, job.run.cwd)}:{holds.line}"
        words = f"it is inside of `with {lock}:` already, in {holds.function} ({where})"
        return replace(verdict, klass="lock_deadlock", cause="lock_taken_twice", words=words)
    if verdict.blamed_child is not None:
        return replace(
            verdict, cause="worker_waits_for_lock", words=f"it waits for the lock of `{place.text}`"
        )
    return verdict


def _in_lock(rank: RankView, child: int | None) -> bool:
    """By the kernel."""
    main = rank.thread_wait(child)
    if main is not None:
        return main.wait.kind in LOCK_WAITS
    return child is None and rank.on_futex
