"""What would end a wait, by the program's text: the statement that puts into the queue, gives back the permit or sends the
message; and the condition by which one goes past it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from diag.detectors.hang.partings import OF_RANK, head_of, path_of
from diag.detectors.hang.program_lines import thread_of
from diag.detectors.hang.verdict import Verdict
from diag.model.observations import Block, Frame, Leave, Statement
from diag.state.python_waits import python_wait
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path

# By the kind of wait (`python_waits`), the calls that end it.
_ENDED_BY = {
    "queue_get": ("put", "put_nowait"),
    "queue_put": ("get", "get_nowait"),
    "queue_join": ("task_done",),
    "channel_get": ("put", "put_nowait"),
    "channel_put": ("get", "get_nowait"),
    "event": ("set",),
    "process_event": ("set",),
    "semaphore": ("release",),
    "condition": ("notify", "notify_all"),
    "future": ("set_result", "set_exception"),
}
_CAUSES = (
    "nobody_puts",
    "nobody_takes",
    "nobody_sets",
    "permits_are_gone",
    "nobody_gives_result",
    "task_done_missing",
)
_MESSAGES = "messages_do_not_match"
_WAITED_FOR = re.compile(
    r"(?:\w+\.)*(?P<of>\w+)(?:\[[^\[\]]*\])?\.(?:get|put|wait|wait_for|acquire|join|result)\(|^with (?:\w+\.)*(?P<with>\w+):"
)
_STAGE = re.compile(r"first|last|stage|prev|next|src|dst|even|odd|parity|peer", re.I)
ADVICE = "Make the statement shown on every way through the code there, also on the one that goes past it (a finally block)."
ADVICE_OF_MESSAGES = (
    "The message shown is not sent on the way past it, and whoever expects it waits for ever: send it in any case, with nothing in "
    "it, or tell the number of messages first."
)
_MOST = 2


def with_counterpart(verdict: Verdict, job: JobView) -> Verdict:
    """As far as the program's text was read. Unchanged where nothing leads past any of them, and where no thread is left in
    the function that makes it: then that one has ended."""
    if verdict.origin:
        return verdict
    if verdict.cause in _CAUSES:
        rank = verdict.culprit(job)
        found = list(_of_wait(rank, verdict, job)) if rank is not None else []
        return _told(verdict, found[:_MOST], ADVICE, job)
    circle = verdict.collectives.circle if verdict.collectives is not None else None
    if verdict.cause == _MESSAGES and circle is not None and len(circle.ranks) == 2:
        sides = [(rank, list(_left_unsent(rank, job))) for rank in job.ranks.known(circle.ranks)]
        told = [(rank, found) for rank, found in sides if found]
        if len(told) == 1 and _receives(verdict, told[0][0], job):
            return _told(verdict, told[0][1][:1], ADVICE_OF_MESSAGES, job)
    return verdict


def _told(verdict: Verdict, found: Sequence[Statement], advice: str, job: JobView) -> Verdict:
    cwd = job.run.cwd
    clauses = []
    for one in found:
        where = f"{format_path(one.file, cwd)}:{one.line}"
        past = next(_ways_past(one), None)
        under = next(_conditions(one), None)
        if past is not None:
            clauses.append(
                f"`{one.text}` ({where}) would end it, and {head_of(past.under, one.file, cwd)} leads past it"
            )
        elif under is not None:
            clauses.append(
                f"`{one.text}` ({where}) would end it, and is only under {head_of(under, one.file, cwd)}"
            )
    if not clauses:
        return verdict
    words = ", and ".join(filter(None, (verdict.words, *clauses)))
    return replace(verdict, words=words, origin=advice)


def _ways_past(one: Statement) -> Iterator[Leave]:
    return (leave for leave in one.leaves if not leave.under.is_loop)


def _conditions(one: Statement) -> Iterator[Block]:
    return (block for block in one.around if block.kind in ("if", "elif", "else"))


# --- of a queue, a permit, an event


def _of_wait(rank: RankView, verdict: Verdict, job: JobView) -> Iterator[Statement]:
    thread = thread_of(rank, verdict)
    wait = python_wait(thread) if thread is not None else None
    place = job.program.at(wait.own) if wait is not None else None
    named = _WAITED_FOR.search(place.text) if place is not None else None
    if wait is None or place is None or named is None:
        return
    sample = rank.sample(verdict.blamed_child or rank.placement.pid)
    alive = {
        (frame.file, frame.function.rpartition(".")[2])
        for other in (sample.threads if sample is not None else ())
        if thread is None or other.thread_id != thread.thread_id
        for frame in other.frames
    }
    name = named["of"] or named["with"]
    keys = {f"{name}.{call}" for call in _ENDED_BY.get(wait.kind, ())}
    for one in job.program.statements("ends_wait"):
        runs = any((one.file, function) in alive for function in (one.function, *one.called_in))
        if one.key in keys and runs and (next(_ways_past(one), None) or next(_conditions(one), None)):
            yield one


# --- of a message


def _left_unsent(rank: RankView, job: JobView) -> Iterator[Statement]:
    """Sends under a condition that does not ask for the rank, in a function that it is in, before its line."""
    path = path_of(rank.judged)
    for one in job.program.statements("messages"):
        if one.key == "send" and any(_is_before(one, frame) for frame in path):
            heads = [block.text for block in _conditions(one)]
            heads += [leave.under.text for leave in _ways_past(one)]
            if heads and not any(OF_RANK.search(head) or _STAGE.search(head) for head in heads):
                yield one


def _is_before(one: Statement, frame: Frame) -> bool:
    if one.file != frame.file:
        return False
    function = frame.function.rpartition(".")[2]
    lines = [(one.function, one.line), *zip(one.called_in, one.called_at, strict=True)]
    return any(name == function and line < frame.line for name, line in lines)


def _receives(verdict: Verdict, rank: RankView, job: JobView) -> bool:
    """The other one waits to receive from it."""
    others = [one for one in job.ranks.known(verdict.everyone) if one.rank != rank.rank]
    calls = [one.exchange or (one.judged.exchange if one.judged is not None else None) for one in others]
    return any(call is not None and not call.sends and call.peer == rank.rank for call in calls)
