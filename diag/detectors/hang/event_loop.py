"""What the tasks of an event loop that does not move wait for: they are on no thread's stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from diag.detectors.hang.program_lines import thread_of
from diag.detectors.hang.raised import format_raised
from diag.detectors.hang.verdict import Note, Verdict
from diag.model import numbered
from diag.model.observations import AsyncTask, Frame, Raised, VariablesRead
from diag.state.own_code import own_frames
from diag.state.python_waits import is_in_event_loop
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.text.units import format_path

# Causes that say that a rank is in its event loop, or in a call, and not why.
_IN_WORDS, _IN_EVIDENCE = 2, 5
# What only another task of the loop can end, by asyncio's own functions (CPython 3.8-3.13).
_PERMITS = ("Semaphore.acquire", "Lock.acquire", "_ContextManagerMixin.__aenter__")
_ITEMS = (
    "Queue.get",
    "Queue.put",
    "Queue.join",
    "Event.wait",
    "Condition.wait",
    "Condition.wait_for",
    "Barrier.wait",
)
_FILES = ("asyncio/locks.py", "asyncio/queues.py")


def with_tasks(verdict: Verdict, job: JobView) -> Verdict:
    """Of the first culprit, where the thread to blame runs the loop."""
    rank, thread = verdict.culprit(job), None
    if rank is not None and (verdict.is_of("outside") or verdict.cause == "event_loop_is_empty"):
        thread = thread_of(rank, verdict)
    if rank is None or thread is None or not is_in_event_loop(thread):
        return verdict
    read = job.program.variables(rank.rank, verdict.blamed_child or rank.placement.pid)
    tasks, left_out = (read.tasks, read.tasks_left_out) if read is not None else ((), 0)
    there = [one for one in tasks if one.frames]
    waiting = [one for one in there if one.awaits != "tasks"]  # others only wait for these
    if not waiting:
        return verdict
    cwd = job.run.cwd
    notes = [
        Note("variables", f"{numbered(f'{count} [task|tasks]', count)}: {text}", rank.rank)
        for text, count in Counter(_path(one, cwd) for one in waiting).most_common(_IN_EVIDENCE)
    ]
    words = ", and ".join(
        filter(None, (verdict.words, _words(len(there) + left_out, waiting, cwd), _failed(tasks, cwd)))
    )
    described = replace(verdict, words=words).noted(*notes)
    whole = not left_out and verdict.cause == "event_loop_is_empty"
    if whole and all(_waits_in(one, _PERMITS) for one in waiting):
        return replace(described, cause="tasks_wait_for_permits")
    if whole and all(_waits_in(one, (*_PERMITS, *_ITEMS)) for one in waiting):
        return replace(described, cause="tasks_wait_for_each_other")
    return described


def of_tasks(read: VariablesRead, cwd: str) -> str:
    """Of a process whose event loop waits: where its tasks do, and which of them has failed. Empty where it has none."""
    there = [one for one in read.tasks if one.frames]
    waiting = [one for one in there if one.awaits != "tasks"]
    words = _words(len(there) + read.tasks_left_out, waiting, cwd) if waiting else ""
    return ", and ".join(filter(None, (words, _failed(read.tasks, cwd))))


def _words(count: int, waiting: Sequence[AsyncTask], cwd: str) -> str:
    """ "of its 17 tasks 16 wait in Semaphore.acquire, in ToolClient.call (tools.py:25)"."""
    clauses = Counter(_clause(one, cwd) for one in waiting).most_common()
    shown = [f"{many} {numbered('[waits|wait]', many)} in {clause}" for clause, many in clauses[:_IN_WORDS]]
    rest = len(waiting) - sum(many for _, many in clauses[:_IN_WORDS])
    more = f" and {rest} elsewhere" if rest else ""
    return f"of its {numbered(f'{count} [task|tasks]', count)} {' and '.join(shown)}{more}"


def _failed(tasks: Sequence[AsyncTask], cwd: str) -> str:
    """ "its task produce ended with ValueError: row 805, raised in load (data.py:9)" of one that keeps its exception for
    whoever awaits it."""
    found = next((one for one in tasks if one.error), None)
    if found is None:
        return ""
    error = found.error.strip("<>").removesuffix(": ")
    return f"its task {found.name} ended with {format_raised(Raised(found.name, error, found.raised), cwd)}"


def _clause(task: AsyncTask, cwd: str) -> str:
    inner = task.frames[-1]
    own = own_frames(task.frames)
    if not own or own[-1] == inner:
        return format_frame(inner, cwd)
    lock = _asyncio_frame(task, (*_PERMITS, *_ITEMS)) or inner
    return f"{lock.function}, in {format_frame(own[-1], cwd)}"


def _path(task: AsyncTask, cwd: str) -> str:
    return " < ".join(format_frame(one, cwd) for one in reversed(task.frames[-4:]))


def _waits_in(task: AsyncTask, functions: Sequence[str]) -> bool:
    return _asyncio_frame(task, functions) is not None


def _asyncio_frame(task: AsyncTask, functions: Sequence[str]) -> Frame | None:
    """The outermost one below the program's own."""
    own = own_frames(task.frames)
    at = task.frames.index(own[-1]) + 1 if own else 0
    return next(
        (one for one in task.frames[at:] if one.function in functions and format_path(one.file) in _FILES),
        None,
    )
