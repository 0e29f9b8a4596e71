"""Calls of process groups whose order no line of the program decides: of two threads of a rank, in one group or in two, and of
what the interpreter runs when it frees an object."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from diag.detectors.hang.messages import call_of
from diag.detectors.hang.verdict import Note, Verdict, format_who, others
from diag.model.observations import Frame, ThreadStack
from diag.state.collective_fronts import Front
from diag.state.own_code import own_frames
from diag.state.python_waits import awaits_task
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity, format_frame, is_in_lock, read_stack
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks

_CANNOT_MATCH = ("mismatch", "order_cycle")  # of `Explanation.kind`
# Causes of calls that cannot match, and of a rank that is elsewhere.
_ELSEWHERE = ("all_ranks_wait", "nobody_sends")
_MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
_DESTRUCTOR = "__del__"
_FINALIZER = ("finalize.__call__", "finalize._exitfunc")  # of weakref.py, CPython 3.8-3.13
_SHOWN = 2
_NUMBER = re.compile(r"\d+")  # of a thread, or of a pool


def with_unordered_calls(verdict: Verdict, job: JobView) -> Verdict:
    found = verdict.collectives
    proven = found is not None and found.kind in _CANNOT_MATCH and verdict.is_of("unlike_calls")
    if not (proven or verdict.is_of("outside") or verdict.cause in _ELSEWHERE):
        return verdict
    if proven and (shared := _of_two_threads(verdict, job) or _of_another_thread(verdict, job)) is not None:
        return shared
    return _in_destructor(verdict, job, proven=proven)


# --- two threads in one group


def _of_two_threads(verdict: Verdict, job: JobView) -> Verdict | None:
    """Every rank whose calls do not fit has two threads in calls of the group, by its stacks and its recorder."""
    front = verdict.collectives.front if verdict.collectives is not None else None
    if front is None or len(front.waiting) < 2:
        return None
    ranks = job.ranks.known(front.waiting)
    inside = {rank.rank: _threads_in(rank, front.backend, front.group) for rank in ranks}
    if len(ranks) < len(front.waiting) or any(len(threads) < 2 for threads in inside.values()):
        return None
    everyone = tuple(sorted(verdict.everyone))
    cwd = job.run.cwd
    clauses = [
        f"rank {rank.rank}'s "
        + " and ".join(
            f"{_name(rank, one)} in {call_of(read_stack(one), cwd)}" for one in inside[rank.rank][:2]
        )
        for rank in ranks[:_SHOWN]
    ]
    notes = [
        Note(rank.stack.how, f"{_name(rank, one)}: {_path(one.frames, cwd)}", rank.rank)
        for rank in ranks[:_SHOWN]
        for one in inside[rank.rank][:2]
        if rank.stack is not None
    ]
    return replace(
        verdict, klass="collective_mismatch", cause="two_threads_use_one_group", culprits=everyone, waiting=(),
        words=", ".join(clauses),
    ).noted(*notes)  # fmt: skip


def _threads_in(rank: RankView, backend: str, group: str) -> list[ThreadStack]:
    """Threads that wait in calls, where these can only be of that group: no call of another one is pending."""
    entries = rank.recorder.entries if rank.recorder is not None else ()
    pending = [one for one in entries if one.pending]
    elsewhere = any((one.backend, one.group) != (backend, group) or one.is_p2p for one in pending)
    threads = rank.stack.threads if rank.stack is not None else ()
    inside = [one for one in threads if _is_in_call(one)]
    return [] if elsewhere or len(pending) < len(inside) else inside


def _is_in_call(thread: ThreadStack) -> bool:
    """Of a call that all ranks of a group make, which the recorder of each backend has."""
    reading = read_stack(thread)
    return (
        reading.activity is Activity.COLLECTIVE
        and reading.where is not None
        and reading.where.function.rpartition(".")[2] not in _MESSAGES
    )


def _name(rank: RankView, thread: ThreadStack) -> str:
    return (
        "main thread"
        if thread.thread_id == rank.placement.pid
        else f"thread {thread.name or thread.thread_id}"
    )


def _path(frames: Sequence[Frame], cwd: str) -> str:
    return " < ".join(format_frame(one, cwd) for one in reversed(own_frames(frames)[-3:]))


# --- two groups, each in a thread of its own


def _of_another_thread(verdict: Verdict, job: JobView) -> Verdict | None:
    """Some ranks wait in a call that a thread beside the main one makes, while the main threads of the others are in a call
    of another group: that thread is elsewhere there, and so no order of the main thread's calls keeps it from its own."""
    if verdict.cause != "groups_in_opposite_order":
        return None
    ranks = job.ranks.known(sorted(verdict.everyone))
    beside = {rank.rank: one for rank in ranks if (one := _thread_beside(rank)) is not None}
    rest = tuple(rank for rank in ranks if rank.rank not in beside)
    names = {_NUMBER.sub("", one.name) for one in beside.values()}
    if len(ranks) < len(verdict.everyone) or not rest or len(names) != 1 or not all(names):
        return None
    if any((main := _main(rank)) is None or not read_stack(main).activity.waits_for_peers for rank in rest):
        return None
    name = names.pop()
    there = {rank.rank: _threads_called(rank, name) for rank in rest}
    if any(_is_in_call(one) for threads in there.values() for one in threads):
        return None
    first = next(iter(beside.values()))
    peers, culprits = tuple(beside), tuple(rank.rank for rank in rest)
    cwd = job.run.cwd
    begun = own_frames(first.frames)[:1]
    inside = f" from {format_frame(begun[0], cwd)}" if begun else ""
    words = f"{format_who(peers, '[makes|make]')} it in thread {first.name}{inside}, and {_at_rest(rest[0], there, cwd)}"
    ended = all(awaits_task(one) for threads in there.values() for one in threads)
    held = all(
        (main := _main(rank)) is not None and _waits_locally(main) for rank in ranks if rank.rank in beside
    )
    return replace(
        verdict, klass="collective_mismatch" if ended and held else "peer_not_joined",
        cause="task_ended_without_call" if ended and held else "call_of_a_thread_missing",
        culprits=culprits, waiting=peers, words=words,
    )  # fmt: skip


def _thread_beside(rank: RankView) -> ThreadStack | None:
    """The only thread of it that is in a call, where that is not the main one."""
    threads = rank.stack.threads if rank.stack is not None else ()
    inside = [one for one in threads if _is_in_call(one)]
    main = _main(rank)
    if len(inside) != 1 or main is None or read_stack(main).activity.waits_for_peers:
        return None
    return inside[0]


def _main(rank: RankView) -> ThreadStack | None:
    threads = rank.stack.threads if rank.stack is not None else ()
    return next((one for one in threads if one.thread_id == rank.placement.pid), None)


def _threads_called(rank: RankView, name: str) -> list[ThreadStack]:
    threads = rank.stack.threads if rank.stack is not None else ()
    return [
        one for one in threads if one.thread_id != rank.placement.pid and _NUMBER.sub("", one.name) == name
    ]


def _at_rest(rank: RankView, there: Mapping[int, Sequence[ThreadStack]], cwd: str) -> str:
    """Where the thread of that name is on the first of the ranks that have not made the call."""
    threads = there[rank.rank]
    if not threads:
        return f"rank {rank.rank} has no such thread"
    one = next((one for one in threads if not awaits_task(one)), threads[0])
    if awaits_task(one):
        return f"thread {one.name} of rank {rank.rank} is done with its task, and waits for the next one"
    own = (own_frames(one.frames) or one.frames)[-1:]
    return f"thread {one.name} of rank {rank.rank} is in {format_frame(own[0], cwd)}"


def _waits_locally(main: ThreadStack) -> bool:
    """For something of its own process: a lock, a future, a thread that should end."""
    return is_in_lock(main) or read_stack(main).activity is Activity.TEARDOWN


# --- in a destructor


def _in_destructor(verdict: Verdict, job: JobView, *, proven: bool) -> Verdict:
    """Some ranks wait in a call that a destructor makes, and others are elsewhere."""
    ranks = job.ranks.known(sorted(verdict.everyone))
    freed = {rank.rank: place for rank in ranks if (place := _freed_at(rank)) is not None}
    if not freed:
        return _made_by_text(verdict, job) if proven else verdict
    if len(freed) == len(ranks):
        return verdict
    first = next(iter(freed.values()))
    who = tuple(rank for rank, place in freed.items() if place == first)
    words = (
        f"{format_who(who, '[waits|wait]')} in a call that {format_frame(first, job.run.cwd)} makes, which no line calls: "
        "the interpreter runs it when it frees the object, on each rank at a time of its own"
    )
    if not proven:
        return replace(verdict, words=", ".join(filter(None, (verdict.words, words))))
    # Fewer are the odd ones out; of as many, those that have not come to what the others wait in.
    rest = tuple(rank.rank for rank in ranks if rank.rank not in freed)
    culprits = rest if len(rest) <= len(freed) else tuple(freed)
    waiting = others(tuple(sorted(verdict.everyone)), culprits)
    return replace(verdict, cause="call_in_destructor", words=words, culprits=culprits, waiting=waiting)


def _made_by_text(verdict: Verdict, job: JobView) -> Verdict:
    """Nobody is in a destructor, but by the program's text one makes a call of the kind that some have made once more than
    others: these are in it now, and all were in one just before."""
    found, seen = verdict.collectives, []
    if found is None or found.front is None or verdict.cause != "calls_differ" or len(found.signatures) != 2:
        return verdict
    for made in found.signatures:
        statement = next((one for one in job.program.statements("in_destructor") if one.key == made.op), None)
        if statement is not None and all(
            _called_before(rank, found.front, made.op) for rank in job.ranks.known(verdict.everyone)
        ):
            seen.append((made, statement))
    if len(seen) != 1 or not {*verdict.everyone} <= {rank for one in found.signatures for rank in one.ranks}:
        return verdict
    made, statement = seen[0]
    cwd = job.run.cwd
    lines = f"{format_path(statement.file, cwd)}:{statement.line}"
    where = f"`{statement.text}` ({lines})"
    if statement.called_at:
        where += f", which `__del__` calls ({format_path(statement.file, cwd)}:{statement.called_at[0]})"
    else:
        where += " in `__del__`"
    rest = others(tuple(sorted(verdict.everyone)), made.ranks)
    words = (
        f"{format_who(made.ranks, '[has|have]')} called {made.op} twice in a row and {format_ranks(rest)} once, and such a call "
        f"is {where}: the interpreter runs it when it frees the object, on each rank at a time of its own"
    )
    culprits = rest if len(rest) <= len(made.ranks) else made.ranks
    waiting = others(tuple(sorted(verdict.everyone)), culprits)
    return replace(verdict, cause="call_in_destructor", words=words, culprits=culprits, waiting=waiting)


def _called_before(rank: RankView, front: Front, op: str) -> bool:
    """As the call before the one of that front, in its group."""
    entries = rank.recorder.entries if rank.recorder is not None else ()
    return any(
        (one.backend, one.group, one.seq, one.op) == (front.backend, front.group, front.seq - 1, op)
        for one in entries
        if not one.is_p2p
    )


def _freed_at(rank: RankView) -> Frame | None:
    """The destructor or finalizer that its thread is in, while it waits for its peers."""
    judged = rank.judged
    if judged is None or rank.activity is None or not rank.activity.waits_for_peers:
        return None
    for at, frame in enumerate(judged.frames):
        if frame.function.rpartition(".")[2] == _DESTRUCTOR:
            return frame
        if frame.function in _FINALIZER and frame.file.endswith("weakref.py"):
            return next(iter(judged.frames[at + 1 :]), frame)
    return None
