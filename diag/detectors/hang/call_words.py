"""What the sentences and advice of the catalogue may name of calls of process groups: those that differ, that one has
skipped, that wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diag.detectors.hang.pipeline import format_circle
from diag.detectors.hang.verdict import Verdict, format_who
from diag.model import numbered
from diag.state.collective_fronts import Front
from diag.state.stack_activity import Activity, format_frame
from diag.state.view import JobView
from diag.state.wait_graph import Wait
from diag.text.units import format_ranks


def calls_that_differ(verdict: Verdict, job: JobView | None = None) -> str:
    """ ": ranks 0,2 call all_reduce [8], rank 1 calls broadcast [8] and is in save (ckpt.py:9) (default_pg 7)" of a mismatch;
    without `job` not where they are."""
    found = verdict.collectives
    if found is None or not found.signatures:
        return _calls_waited_in(verdict)
    parts = []
    for call in found.signatures[:4]:
        sizes = " ".join(str(list(size)) for size in call.sizes[:2])
        made = f"{format_who(call.ranks, '[calls|call]')} {call.op} {sizes}".rstrip()
        parts.append(made + (_where_now(call.ranks, verdict, job) if job is not None else ""))
    place = f" ({found.front.desc or found.front.group} {found.front.seq})" if found.front else ""
    return ": " + ", ".join(parts) + place


def _where_now(ranks: Sequence[int], verdict: Verdict, job: JobView) -> str:
    """The line at which they are now, and wait for that call, or go on beside it where calls are made ahead; of who is said to
    wait it is said there."""
    if set(ranks) <= set(verdict.waiting):
        return ""
    readings = [rank.reading for rank in job.ranks.known(ranks)]
    frames = [None if one is None else one.own or one.where for one in readings]
    places = {format_frame(frame, job.run.cwd) for frame in frames if frame is not None}
    if len(places) != 1 or None in frames:
        return ""
    return f" and {numbered('[is|are]', len(ranks))} in {places.pop()}"


def _calls_waited_in(verdict: Verdict) -> str:
    found = verdict.collectives
    waiting = sorted(found.waiting.items()) if found is not None else ()
    parts = [
        f"rank {rank} in {wait.op} {wait.seq} of {wait.desc or wait.group}"
        for rank, wait in waiting
        if rank in verdict.culprits
    ]
    return " (" + ", ".join(parts[:4]) + ")" if parts else ""


def _passed_call(verdict: Verdict, job: JobView) -> str:
    passed = verdict.collectives.passed if verdict.collectives is not None else ()
    calls = dict.fromkeys(_call_of(one.front) for one in passed if one.rank in verdict.culprits)
    return " and ".join([*calls][:2]) or "a call"


def _due(verdict: Verdict, job: JobView) -> str:
    """What shows that a call was due which those to blame have not made."""
    passed = verdict.collectives.passed if verdict.collectives is not None else ()
    if any(one.in_later_round for one in passed):
        return " in an earlier round of the loop that all are in"
    return ", and made it at this point in the steps before"


def _next_call(verdict: Verdict, job: JobView) -> str:
    waiting = verdict.collectives.waiting if verdict.collectives is not None else {}
    calls = dict.fromkeys(_call_of(waiting[rank]) for rank in verdict.culprits if rank in waiting)
    return " or ".join([*calls][:2]) or "another one"


def _call_of(call: Front | Wait) -> str:
    """ "all_reduce 12 of default_pg"."""
    return f"{call.op} {call.seq} of {call.desc or call.group}"


def _past(verdict: Verdict, job: JobView) -> str:
    """What led past a call that was due."""
    if verdict.parted:
        return "see the condition or loop shown"
    text = "see what led past the line where they wait (a condition, an early return, an exception that was caught)"
    if waits_in_backward(verdict, job):
        text += (
            "; where backward itself was run, some parameters were not used in it: use all in every step, or set "
            "find_unused_parameters=True in DistributedDataParallel"
        )
    return text


def waits_in_backward(verdict: Verdict, job: JobView) -> bool:
    """Those who wait do so for gradients: in the autograd engine, no call of Python's below it."""
    waiting = job.ranks.known(verdict.waiting)
    return bool(waiting) and all(rank.activity is Activity.BACKWARD for rank in waiting)


def _circle(verdict: Verdict, job: JobView) -> str:
    circle = verdict.collectives.circle if verdict.collectives is not None else None
    return f": {format_circle(circle)}," if circle is not None else ""


def _unmet_messages(verdict: Verdict, job: JobView) -> str:
    """Of ranks none of which is to blame more than another."""
    circle = verdict.collectives.circle if verdict.collectives is not None else None
    ways = {circle.exchanges[rank].sends for rank in circle.ranks} if circle is not None else set()
    who = f"Each of {format_ranks(verdict.culprits)}"
    if ways == {True}:
        return (
            f"{who} sends before it receives, and such a send ends only when the other side receives. Let one side of each "
            "pair receive first, or begin both at once (batch_isend_irecv; irecv before send). Where other steps come "
            "through in that order"
        )
    if ways == {False}:
        return (
            f"{who} receives before it sends, and nobody sends first. Let one side of each pair send first, or begin both "
            "at once (batch_isend_irecv; isend before recv). Where other steps come through in that order"
        )
    return f"{who} waits for a message that another of them sends or receives only after its own"


def _branch(verdict: Verdict, job: JobView) -> str:
    """What to do about ranks that went different ways."""
    if verdict.parted:
        return (
            "at the condition or loop shown they went different ways: let all ranks decide alike there (decide on one "
            "and broadcast the decision), make the call outside of the condition, or give all the same number of steps"
        )
    return "look for a branch that depends on the rank, on the data, or on a shape that differs, at the lines their stacks show"


def _why_unmet(verdict: Verdict, job: JobView) -> str:
    if verdict.parted:
        return _branch(verdict, job)
    return (
        "compare the arguments of this call on each rank: who is the source or the peer (src, dst), the group, the tag, and "
        "the order of sends and receives; let one rank decide them, or all by the same numbers"
    )


CALL_FACTS: dict[str, Callable[[Verdict, JobView], str]] = {
    "calls": calls_that_differ,
    "calls_waited_in": lambda verdict, job: _calls_waited_in(verdict),
    "passed_call": _passed_call,
    "next_call": _next_call,
    "due": _due,
    "past": _past,
    "circle": _circle,
    "unmet_messages": _unmet_messages,
    "branch": _branch,
    "why_unmet": _why_unmet,
}
