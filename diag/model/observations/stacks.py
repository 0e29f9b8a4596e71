"""Python stacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class Frame:
    """A Python frame. `file` is the whole path as the interpreter has it."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A send or receive that a thread is in, by its arguments. `peer` is a rank of the job; `queues`: code of its stack
    also sends without waiting (isend)."""

    sends: bool
    peer: int
    tag: int = 0
    queues: bool = False


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Frames outermost first (the way a person reads a traceback). `objects`: what methods of the standard library in it
    wait for (a queue, an event, a future), each by the method and the address, innermost first."""

    thread_id: int
    name: str
    frames: tuple[Frame, ...]
    active: bool | None = None
    owns_gil: bool | None = None
    exchange: Exchange | None = None
    objects: tuple[tuple[str, int], ...] = ()
    # What `stacks.read_stack` found in the frames: many ask, and it is looked up once.
    kept_reading: Any = field(default=None, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class StackSample(Observation):
    """All Python threads of one process; `parent_pid` is the rank's pid when this is one of its children."""

    pid: int
    threads: tuple[ThreadStack, ...]
    how: str  # the source: "remote_stack", "pyspy" or "faulthandler"
    emitted: float
    parent_pid: int | None = None

    @property
    def main(self) -> ThreadStack | None:
        """The main thread: its native id is the pid; else the one called MainThread; else the last of faulthandler."""
        for thread in self.threads:
            if thread.thread_id == self.pid or thread.name == "MainThread":
                return thread
        return self.threads[-1] if self.threads else None
