"""What the program's own text adds to a verdict: the loop in which a rank polls, the handler of an exception that it is
in, and the condition by which two ranks came apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diag.detectors.hang.verdict import Note, Verdict
from diag.model import numbered
from diag.model.observations import Block, Frame, ProgramPlace, ThreadStack
from diag.state.own_code import is_own_file
from diag.state.program import Program
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks

# Causes of ranks that have come to other lines than the others.
_APART = (
    "not_in_collective", "busy", "busy_in_c", "calls_differ", "call_unanswered", "left_before_the_others", "sleeps",
    "all_ranks_wait",
)  # fmt: skip
_CONDITIONS = ("if", "elif", "else")
# What ranks do that go round in a loop.
_LOOPS = {"sleeps": "it sleeps again and again", "busy": "it goes round"}
_OUTWARDS = 3  # own frames in which the loop is sought
_MOST_CLAUSES = 2


def with_program_lines(verdict: Verdict, job: JobView) -> Verdict:
    """By the first culprit, and the first rank elsewhere that waits for it; where nobody is to blame, by the first rank."""
    everybody = (*verdict.culprits, *verdict.waiting)
    rank = job.ranks.get(everybody[0]) if everybody else None
    if rank is None:
        return verdict
    frames = _own_frames(_thread(rank, verdict))
    place = job.program.at(frames[-1] if frames else None)
    if place is None:
        return verdict
    clauses: list[str] = []
    cause, cwd = verdict.cause, job.run.cwd
    if verdict.culprits:
        verdict = replace(verdict, notes=(Note("program", _shown(place, cwd), rank.rank), *verdict.notes))
        clauses += _handlers(frames, job.program, cwd)
    if cause in _LOOPS and (loop := _loop(frames, job.program, cwd)):
        clauses.append(f"{_LOOPS[cause]} in the loop {loop}")
        cause = "polls" if cause == "sleeps" else cause
    if cause in _APART:
        apart = list(_apart(rank, everybody[1:], job))
        clauses += apart
        cause = "branch_differs" if apart and cause == "not_in_collective" else cause
    words = " and ".join(filter(None, (", ".join(clauses[:_MOST_CLAUSES]), verdict.words)))
    return replace(verdict, cause=cause, words=words)


def _thread(rank: RankView, verdict: Verdict) -> ThreadStack | None:
    """The one to blame: of the rank, of its child, or the one that its main thread waits for."""
    if verdict.blamed_child is not None:
        child = rank.child_stacks.get(verdict.blamed_child)
        return None if child is None else child[1].main
    last = verdict.chain.last if verdict.chain is not None else None
    if last is not None and last.process.pid == rank.placement.pid and rank.stack is not None:
        return next((one for one in rank.stack.threads if one.thread_id == last.thread.tid), rank.judged)
    return rank.judged


def _own_frames(thread: ThreadStack | None) -> list[Frame]:
    return [frame for frame in thread.frames if is_own_file(frame.file)] if thread is not None else []


def _where(file: str, line: int, cwd: str) -> str:
    return f"{format_path(file, cwd)}:{line}"


def _head(block: Block, file: str, cwd: str) -> str:
    """`while not ready():` (train.py:7)"""
    other = "the else of " if block.kind == "else" else ""
    return f"{other}`{block.text}` ({_where(file, block.line, cwd)})"


def _shown(place: ProgramPlace, cwd: str) -> str:
    inside = ", ".join(
        f"{'the else of ' if block.kind == 'else' else ''}`{block.text}` (line {block.line})"
        for block in place.around[:3]
    )
    return f"{_where(place.file, place.line, cwd)}: `{place.text}`" + (f" in {inside}" if inside else "")


def _handlers(frames: Sequence[Frame], program: Program, cwd: str) -> Iterator[str]:
    """What it is at only since an exception was caught."""
    for frame in reversed(frames[-_OUTWARDS:]):
        place = program.at(frame)
        for block in place.around if place is not None else ():
            if block.kind == "except":
                yield f"it has caught an exception at {_head(block, frame.file, cwd)}"
                return


def _loop(frames: Sequence[Frame], program: Program, cwd: str) -> str:
    """The nearest one, where it is not that of the work itself."""
    for frame in reversed(frames[-_OUTWARDS:]):
        place = program.at(frame)
        loop = next((block for block in place.around if block.is_loop), None) if place is not None else None
        if loop is not None:
            return _head(loop, frame.file, cwd) if loop.kind == "while" else ""
    return ""


# --- where two ranks came apart


def _apart(rank: RankView, everybody_else: Sequence[int], job: JobView) -> Iterator[str]:
    others = [number for number in everybody_else if number in job.ranks]
    ours = _own_frames(rank.judged)
    for number in others:
        theirs = _own_frames(job.ranks[number].judged)
        forked = next(
            (at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None
        )
        if forked is None:
            continue
        here, there = ours[forked], theirs[forked]
        if (here.file, here.function) != (there.file, there.function):
            return
        alike = [one for one in others if _own_frames(job.ranks[one].judged) == theirs]
        yield from _between(
            job.program.at(here),
            [job.program.at(frame) for frame in theirs[forked:]],
            (format_ranks([rank.rank]), format_ranks(alike), numbered("[is|are]", len(alike))),
            job.run.cwd,
        )
        return


def _between(
    here: ProgramPlace | None, path: Sequence[ProgramPlace | None], who: tuple[str, str, str], cwd: str
) -> Iterator[str]:
    """Of each side the outermost block in which the other is not. `path`: of the others from the function where they
    came apart to their innermost line."""
    there = path[0]
    if here is None or there is None:
        return
    one, others, are = who
    own, their = _not_around(here, there), _not_around(there, here)
    if their is not None and here.line > their.last and their.is_loop:
        left = f"{one} has left the loop {_head(their, there.file, cwd)}"
        yield f"{left}, in which {others} still {are}{_ways_out(there, their, cwd)}"
        return
    if own is not None:
        inside = "in the loop" if own.is_loop else "under"
        yield f"{one} is {inside} {_head(own, here.file, cwd)}, where {others} {are} not"
    elif their is not None and here.line > their.last:
        yield f"{others} {are} under {_head(their, there.file, cwd)}, which {one} has passed by"
    elif here.line > there.line:
        deeper = ((place, block) for place in path[1:] if place is not None for block in place.around[::-1])
        found = next(((place, block) for place, block in deeper if block.kind in _CONDITIONS), None)
        if found is not None:
            yield f"{others} {are} under {_head(found[1], found[0].file, cwd)}"


def _not_around(place: ProgramPlace, other: ProgramPlace) -> Block | None:
    around = {block.line for block in other.around}
    blocks = (block for block in reversed(place.around) if block.kind in (*_CONDITIONS, "while", "for"))
    return next((block for block in blocks if block.line not in around), None)


def _ways_out(place: ProgramPlace, loop: Block, cwd: str) -> str:
    """Beside its end."""
    found = [leave for leave in place.leaves if leave.word == "return" or leave.loop == loop.line]
    found = [leave for leave in found if leave.word != "continue" and loop.line < leave.line <= loop.last]
    texts = [f"{_head(leave.under, place.file, cwd)} {leave.word}s from it" for leave in found[:2]]
    texts = [text.replace(" breaks from it", " breaks it off") for text in texts]
    return f" ({', '.join(texts)})" if texts else ""
