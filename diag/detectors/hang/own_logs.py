"""What a process wrote into a log file of its own shortly before a rank stood still: whoever catches an exception often says so
only there. Of the rank to blame, and of those that it waits for and that are no ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from diag.detectors.hang.endless_waits import NOBODY
from diag.detectors.hang.program_lines import thread_of
from diag.detectors.hang.verdict import Note, Verdict
from diag.knowledge.tracebacks import FRAME, PLACE
from diag.model.observations import Frame, LastLines, LinesWritten
from diag.state.own_code import is_same_file, own_frames
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.text.units import format_seconds

_CAUSES = (*NOBODY.values(), "thread_ended", "task_done_missing", "exception_is_kept")
_SECONDS = 600.0  # ours: a queue takes a while to run full, or empty
_LATE_SECONDS = 15.0  # a stack may have been seen to be new so long after the call was made
_LONGEST = 200
# A level or a word of a failure, a class of one, a status of HTTP with its name.
_FAILURE = re.compile(
    r"\b(?i:error|exception|fail(?:ed|ure|s)?|fatal|critical|denied|refused|aborted|cannot|unable to|no such|not found|timed out)\b"
    r"|\b[A-Z]\w*(?:Error|Exception|Exceeded)\b|\b[45]\d\d [A-Z]\w+"
)
_KINDS = ("outside", "lock", "place", "polls")
_OF_OTHERS = (
    "process_is_silent",
    "process_does_not_read",
    "process_takes_nothing",
    "service_is_idle",
    "external_service",
)

BEGIN = "Begin with the error quoted: it is the last that was written there before the rank stood still."

_Log = LinesWritten | LastLines


def with_own_log(verdict: Verdict, job: JobView) -> Verdict:
    """Unchanged where the last lines tell of no failure, or nothing ties them to the wait."""
    rank = verdict.culprit(job)
    if rank is None:
        return verdict
    nobody_left = verdict.cause in _CAUSES
    if not (nobody_left or verdict.is_of(*_KINDS) or verdict.cause in _OF_OTHERS):
        return verdict
    for fact in job.own_logs.of_process(rank.rank):
        if nobody_left or _is_last_word(fact, rank, verdict, job):
            told = _quoted(fact, "it", rank, verdict, job.run.cwd)
            if told is not verdict:
                return told if nobody_left else replace(told, origin=verdict.origin or BEGIN)
    for pid in _awaited(rank, verdict):
        for fact in job.own_logs.of_process(rank.rank, pid):
            if _failure_of(fact.lines[-1:]) and fact.written_at <= verdict.since + _LATE_SECONDS:
                told = _quoted(fact, f"pid {pid}", rank, verdict, job.run.cwd)
                return told if told is verdict else replace(told, origin=verdict.origin or BEGIN)
    return verdict


def _quoted(fact: _Log, who: str, rank: RankView, verdict: Verdict, cwd: str) -> Verdict:
    said = _failure_of(fact.lines)
    if not said or not verdict.since - _SECONDS <= fact.written_at:
        return verdict
    last = said == fact.lines[-1].strip() and fact.written_at <= verdict.since
    ago = f", {format_seconds(verdict.since - fact.written_at)} before it stopped moving" if last else ""
    if who != "it":
        ago = ago.replace("it stopped", "the rank stopped")
    frames = list(_traceback(fact.lines)) if last else []
    own = own_frames(frames) or frames
    raised = f", raised in {format_frame(own[-1], cwd)}" if own else ""
    text = f'{who} wrote into {fact.file}: "{said[:_LONGEST]}"{raised}{ago}'
    words = ", and ".join(filter(None, (verdict.words, text)))
    return replace(verdict, words=words).noted(Note("output", text, rank.rank))


def _failure_of(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if _FAILURE.search(line)), "")


def _is_last_word(fact: _Log, rank: RankView, verdict: Verdict, job: JobView) -> bool:
    """A failure is the last that stands there, of before it stood still; of a file that other ranks write too, one raised
    below a function in which this rank still is, and none of the others."""
    if not fact.lines or not _failure_of(fact.lines[-1:]) or fact.written_at > verdict.since + _LATE_SECONDS:
        return False
    also = [
        other
        for other in job.alive_ranks()
        if other.rank != rank.rank
        and any(
            (one.file, one.lines[-1:]) == (fact.file, fact.lines[-1:])
            for one in job.own_logs.of_process(other.rank)
        )
    ]
    if not also:
        return True
    first = next(_traceback(fact.lines), None)
    thread = thread_of(rank, verdict)
    return (
        first is not None
        and _is_in(first, thread.frames if thread is not None else ())
        and not any(other.judged is not None and _is_in(first, other.judged.frames) for other in also)
    )


def _is_in(frame: Frame, frames: Sequence[Frame]) -> bool:
    return any(
        one.function.rpartition(".")[2] == frame.function and is_same_file(frame.file, one.file)
        for one in frames
    )


def _traceback(lines: Sequence[str]) -> Iterator[Frame]:
    """The frames of the last one, outermost first."""
    begins = max(
        (at for at, line in enumerate(lines) if "Traceback (" in line),
        default=len(lines),
    )
    for line in lines[begins:]:
        found = PLACE.search(line) if FRAME.search(line) else None
        if found is not None:
            yield Frame(found["function"], found["file"], int(found["line"]))


def _awaited(rank: RankView, verdict: Verdict) -> list[int]:
    """Processes that are no ranks, the last one first."""
    chain = verdict.chain
    if chain is None:
        return []
    parties = [other for step in chain.steps for other in step.wait.others if other.rank is None]
    return [pid for pid in dict.fromkeys(one.pid for one in reversed(parties)) if pid != rank.placement.pid]
