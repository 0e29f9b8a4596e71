"""What the program that starts the ranks does, where some have not appeared: it may wait for what only comes after them."""

from __future__ import annotations

import re
from dataclasses import replace

from diag.detectors.hang.partings import head_of, path_of
from diag.detectors.hang.reasons import loop_at, polls
from diag.detectors.hang.verdict import Note, Verdict
from diag.model.observations import Frame
from diag.state.own_code import own_frames
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.text.units import format_ranks

_RUNS = re.compile(
    r"\b(?:subprocess\.)?(?:run|call|check_call|check_output)\(|\bos\.system\(|\.communicate\("
)
_OF_PROCESSES = ("polls_for_process", "polls_for_thread")
ADVICE = (
    "What starts the ranks waits at the line shown before it has started all of them, and a rank that waits for the others (as "
    "init_process_group does) cannot give it what it waits for: start all ranks first."
)

# With pages of 4 KiB `python -I -S -c pass` had 591 (CPython 3.10) to 810 (3.12), seven builds of 3.8-3.13; without -S 749 and more.
_START_FAULTS = 500


def with_starter(verdict: Verdict, job: JobView) -> Verdict:
    """By the parent of the first rank that is there, where that runs code of its own. Unchanged where it only waits for its
    children in a library's launcher."""
    if verdict.cause != "ranks_missing":
        return verdict
    for rank in job.ranks.known(verdict.waiting):
        parent = rank.tree.main.ppid if rank.tree is not None else 0
        sample = rank.child_stacks.get(parent, (0.0, None))[1]
        if sample is None or sample.main is None:
            continue
        path = path_of(sample.main)
        words = _does(path, job)
        if words and sample.main.frames and own_frames(sample.main.frames):
            who = f"pid {parent}, which has started {format_ranks((rank.rank,))},"
            text = f"{who} is in {format_frame(path[-1], job.run.cwd)}: {words}"
            joined = " and ".join(filter(None, (text, verdict.words)))
            return replace(verdict, words=joined, origin=ADVICE).noted(Note("program", text, rank.rank))
    return _with_started_too_few(verdict, job)


def _with_started_too_few(verdict: Verdict, job: JobView) -> Verdict:
    """By the page faults of its ended children: a Python program has more for its start alone."""
    starter = job.program.starter
    alive = {rank.rank: rank.placement for rank in job.alive_ranks() if not rank.node}
    if (
        starter is None
        or {*starter.ranks} != {*alive}
        or not starter.alone
        or starter.ended_faults >= _START_FAULTS
        or all(len(alive) >= (place.local_world_size or place.world_size) for place in alive.values())
    ):
        return verdict
    text = (
        f"pid {starter.pid} (`{starter.command}`) has started {format_ranks(tuple(sorted(alive)))} and no other rank, "
        f"not even one that has ended (its ended children had {starter.ended_faults} page faults in all, and Python's start "
        "alone has more)"
    )
    words = " and ".join(filter(None, (text, verdict.words)))
    return replace(verdict, cause="ranks_not_started", words=words).noted(
        Note("program", text, starter.ranks[0])
    )


def _does(path: list[Frame], job: JobView) -> str:
    """Within a `for` it sleeps in a loop that looks for more than its processes' ends, as one does that only waits for these; or
    runs one program after another. Both show that it is not through with what it goes over."""
    place = job.program.at(path[-1] if path else None)
    outer = (
        next((block for block in place.around if block.kind == "for"), None) if place is not None else None
    )
    if place is None or outer is None:
        return ""
    head = head_of(outer, place.file, job.run.cwd)
    found = loop_at(path, job.program)
    if found is not None and found[1].kind == "while" and found[1].line > outer.line:
        reason = polls(*found, job.run.cwd)
        return f"{reason.words}, within {head}" if reason.kind not in _OF_PROCESSES else ""
    return f"its line is `{place.text}`, within {head}" if _RUNS.search(place.text) else ""
