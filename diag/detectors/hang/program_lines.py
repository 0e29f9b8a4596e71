"""What the program's own text adds to a verdict: the loop in which a rank polls, the handler of an exception that it is
in, the lock that it takes, and where ranks came apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from diag.detectors.hang.partings import Parting, head_of, parting, path_of, ways_out
from diag.detectors.hang.verdict import Note, Verdict, others
from diag.model.observations import Frame, ProgramPlace, ThreadStack
from diag.state.program import Program
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path

# What ranks do that go round in a loop.
_LOOPS = {
    "sleeps": "it sleeps again and again", "busy": "it goes round", "dataloader_worker_slow": "it goes round",
    "goes_round": "it goes round",
}  # fmt: skip
_ALL_IN_CALLS = ("calls_differ", "call_unanswered", "all_ranks_wait")
# Causes of ranks that may have come to another line than the others.
_PARTED = (
    *_ALL_IN_CALLS,
    "not_in_collective",
    "call_does_not_return",
    "busy",
    "busy_in_c",
    "left_before_the_others",
)
# Causes that a lock in the text explains.
_IN_A_LOCK = (
    "not_in_collective", "lock_not_released", "nobody_releases_lock", "threads_wait_for_each_other",
    "dataloader_worker_blocked",
)  # fmt: skip
# Causes that say where a rank is, and little of why: its line may.
_BARE = (
    "not_in_collective",
    "call_does_not_return",
    "busy",
    "busy_in_c",
    "lock_not_released",
    "nobody_releases_lock",
)
_OUTWARDS = 3  # own frames in which the loop is sought
_MOST_CLAUSES = 2
_LOCK_WAITS = ("condition", "mutex", "semaphore")  # of `Wait.kind`
_TAKES = re.compile(r"(?:with (?P<with>[\w.]+):$|(?:[\w.]+ = )?(?P<call>[\w.]+)\.acquire\(\))")


def with_program_lines(verdict: Verdict, job: JobView) -> Verdict:
    """By the first culprit, and the first rank elsewhere; where nobody is to blame, by the first rank."""
    everybody = (*verdict.culprits, *verdict.waiting)
    rank = job.ranks.get(everybody[0]) if everybody else None
    if rank is None:
        return verdict
    thread = _thread(rank, verdict)
    frames = path_of(thread)
    place = job.program.at(frames[-1] if frames else None)
    if place is None and verdict.cause not in _LOOPS:
        return verdict
    clauses: list[str] = []
    cwd = job.run.cwd
    if verdict.culprits and place is None:
        clauses += _handlers(frames, job.program, cwd)  # of whoever called the function that is not read yet
    elif verdict.culprits and place is not None:
        verdict = replace(verdict, notes=(Note("program", _shown(place, cwd), rank.rank), *verdict.notes))
        clauses += _handlers(frames, job.program, cwd)
    if verdict.cause in _LOOPS and (loop := _loop(frames, job.program, cwd)):
        clauses.append(f"{_LOOPS[verdict.cause]} in the loop {loop}")
        if verdict.cause == "sleeps":
            clauses += _zombies(rank)
            verdict = replace(verdict, cause="polls")
    elif place is not None and verdict.cause in _IN_A_LOCK and thread is not None and not verdict.by_kernel:
        verdict = _with_lock(verdict, rank, thread, place, job)
    in_calls = verdict.cause in _ALL_IN_CALLS
    parted = parting(rank, everybody[1:], job, in_calls=in_calls) if verdict.cause in _PARTED else None
    if parted is not None:
        clauses.append(parted.text)
        verdict = _blaming(replace(verdict, parted=parted.for_good), parted)
    if verdict.culprits and verdict.cause in _BARE and not clauses and place is not None:
        clauses.append(f"its line is `{place.text}`")
    words = " and ".join(filter(None, (", ".join(clauses[:_MOST_CLAUSES]), verdict.words)))
    return replace(verdict, words=words)


def _blaming(verdict: Verdict, parted: Parting) -> Verdict:
    """Of calls that differ those who took a way of their own, where they are fewer than the others. Of as many, either
    may have made the call that was due."""
    everybody = (*verdict.culprits, *verdict.waiting)
    if verdict.cause != "calls_differ" or {*parted.apart, *parted.others} != {*everybody}:
        return verdict
    if len(parted.apart) >= len(parted.others):
        return verdict
    return replace(verdict, culprits=tuple(sorted(parted.apart)), waiting=others(everybody, parted.apart))


def _thread(rank: RankView, verdict: Verdict) -> ThreadStack | None:
    """The one to blame: of the rank, of its child, or the one that its main thread waits for."""
    if verdict.blamed_child is not None:
        child = rank.child_stacks.get(verdict.blamed_child)
        return None if child is None else child[1].main
    last = verdict.chain.last if verdict.chain is not None else None
    if last is not None and last.process.pid == rank.placement.pid and rank.stack is not None:
        return next((one for one in rank.stack.threads if one.thread_id == last.thread.tid), rank.judged)
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
    for frame in reversed(frames[-_OUTWARDS:]):
        place = program.at(frame)
        for block in place.around if place is not None else ():
            if block.kind == "except":
                yield f"it has caught an exception at {head_of(block, frame.file, cwd)}"
                return


def _loop(frames: Sequence[Frame], program: Program, cwd: str) -> str:
    """The nearest one, where it is not that of the work itself."""
    places = [place for frame in reversed(frames[-_OUTWARDS:]) if (place := program.at(frame)) is not None]
    found = next(((place, block) for place in places for block in place.around if block.is_loop), None)
    if found is None or found[1].kind != "while":
        return ""
    place, loop = found
    return head_of(loop, place.file, cwd) + ways_out(place, loop, cwd)


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
    taken = _TAKES.match(place.text)
    innermost = thread.frames[-1]
    if taken is None or (innermost.file, innermost.line) != (place.file, place.line):
        return verdict  # of a lock in C: one of Python's own code has frames of its own
    if not _in_lock(rank, verdict.blamed_child):
        return verdict
    lock = taken["with"] or taken["call"]
    outer = thread.frames[:-1] if verdict.blamed_child is None else ()
    holds = next((frame for frame in reversed(outer) if _is_inside(job.program.at(frame), place, lock)), None)
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
    pid = child or rank.placement.pid
    process = rank.waits.process(pid) if rank.waits is not None else None
    main = process.thread(pid) if process is not None else None
    if main is not None:
        return main.wait.kind in _LOCK_WAITS
    return child is None and rank.tree is not None and rank.tree.main.wchan.startswith("futex")


def _is_inside(place: ProgramPlace | None, taking: ProgramPlace, lock: str) -> bool:
    """Of the same name in the same file. At the line itself it waits for the lock, and does not have it."""
    return (
        place is not None
        and place.file == taking.file
        and any(block.text == f"with {lock}:" for block in place.around)
    )
