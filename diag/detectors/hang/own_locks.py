"""Locks of the program's own, which the kernel knows no owner of: by its text, which one a thread takes, and who is
inside of a block that has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from diag.detectors.hang.scene import Scene
from diag.model.observations import Frame, ProgramPlace, ThreadStack
from diag.state.program import Program

_TAKES = re.compile(r"^with (?P<with>[\w.]+)(?: as \w+)?:(?: |$)|(?P<call>[\w.]+)\.acquire\(")
_WITH = re.compile(r"^with (.+):$")


@dataclass(frozen=True, slots=True)
class Holder:
    """A thread that is inside of `with lock:`, in this frame."""

    tid: int
    lock: str
    frame: Frame


def lock_taken(innermost: Frame, place: ProgramPlace | None) -> str:
    """By a thread whose innermost line is that one: a lock in C, since one of Python's own code has frames of its own.
    Empty where it takes none."""
    if place is None or (innermost.file, innermost.line) != (place.file, place.line):
        return ""
    taken = _TAKES.search(place.text)
    return "" if taken is None else taken["with"] or taken["call"]


def is_inside(place: ProgramPlace | None, taking: ProgramPlace, lock: str) -> bool:
    """Of the same name in the same file. At the line itself it waits for the lock, and does not have it."""
    return (
        place is not None
        and place.file == taking.file
        and any(lock in _names(block.text) for block in place.around)
    )


def _names(head: str) -> list[str]:
    """
    >>> _names("with self.guard, open(path) as file:"), _names("while ready:")
    (['self.guard', 'open(path)'], [])
    """
    found = _WITH.match(head)
    return [one.partition(" as ")[0].strip() for one in found[1].split(",")] if found is not None else []


def holder_of(scene: Scene, tid: int) -> Holder | None:
    """Of the lock that a thread of the process waits for: the only other one that is inside of it."""
    thread = scene.threads.get(tid)
    place = _place(scene.job.program, thread)
    lock = lock_taken(thread.frames[-1], place) if thread is not None and thread.frames else ""
    if not lock or place is None:
        return None
    found = [
        Holder(other.thread_id, lock, frame)
        for other in scene.threads.values()
        if other.thread_id != tid
        for frame in _inside(scene.job.program, other, place, lock)
    ]
    return found[0] if len({one.tid for one in found}) == 1 else None


def _place(program: Program, thread: ThreadStack | None) -> ProgramPlace | None:
    return program.at(thread.frames[-1]) if thread is not None and thread.frames else None


def _inside(program: Program, thread: ThreadStack, place: ProgramPlace, lock: str) -> Iterator[Frame]:
    for frame in reversed(thread.frames):
        if is_inside(program.at(frame), place, lock):
            yield frame
