"""Exceptions that were read from a process's memory, in words: which thread handles one, and which object keeps one."""

from __future__ import annotations

from collections.abc import Iterator

from diag.model.observations import Raised, ThreadStack, VariablesRead
from diag.state.own_code import own_frames
from diag.state.stack_activity import format_frame

_OUTWARDS = 3  # own frames of the thread that waits
_LONGEST = 200


def handled_in(read: VariablesRead, thread: ThreadStack) -> Raised | None:
    """None where the thread has come to another function since."""
    if not _is_there(read, thread):
        return None
    return next((one for tid, one in read.handled if tid == thread.thread_id), None)


def kept_in(read: VariablesRead, thread: ThreadStack) -> Iterator[Raised]:
    """By what is in the thread's own innermost functions: an attribute, or an item of a list, not a variable of its own."""
    for own in reversed(own_frames(thread.frames)[-_OUTWARDS:]):
        for frame in read.frames:
            place = (frame.thread_id, frame.file, frame.function)
            if place == (thread.thread_id, own.file, own.function):
                yield from (one for one in frame.raised if "." in one.name or "[" in one.name)


def format_kept(one: Raised, cwd: str) -> str:
    return f"`{one.name}` keeps the exception {format_raised(one, cwd)}"


def format_raised(one: Raised, cwd: str) -> str:
    """ "KeyError: 'rows', raised in Reader.load (reader.py:31)": the program's own line, where it came through one."""
    frames = own_frames(one.frames) or list(one.frames)
    return one.error[:_LONGEST] + (f", raised in {format_frame(frames[-1], cwd)}" if frames else "")


def _is_there(read: VariablesRead, thread: ThreadStack) -> bool:
    own = own_frames(thread.frames)
    inner = [one for one in read.frames if one.thread_id == thread.thread_id and not one.called]
    return bool(own and inner) and (own[-1].file, own[-1].function) == (inner[-1].file, inner[-1].function)
