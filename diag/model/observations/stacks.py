"""Python stacks, and what the program's own text says of a line at which one of its threads is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from diag.model.observations.base import Observation

# As diag/launch/inject has them; nobody else calls a file so.
_HOOK = ("_diag_hook.py", "diag/launch/inject/sitecustomize.py")


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
    wait for (a queue, an event, a future), each by the method and the address, innermost first.

    The frames of diag's own hook, which lies around calls of the program, are left out: neither is a place of the job."""

    thread_id: int
    name: str
    frames: tuple[Frame, ...]
    active: bool | None = None
    owns_gil: bool | None = None
    exchange: Exchange | None = None
    objects: tuple[tuple[str, int], ...] = ()
    # What `stacks.read_stack` found in the frames: many ask, and it is looked up once.
    kept_reading: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if any(frame.file.endswith(_HOOK) for frame in self.frames):
            kept = tuple(frame for frame in self.frames if not frame.file.endswith(_HOOK))
            object.__setattr__(self, "frames", kept)


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


@dataclass(frozen=True, slots=True)
class NativeFramesRead(Observation):
    """Frames of C code in any thread of a rank, "function library" each, once each: only where a person asked for them."""

    pid: int
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A statement whose block leads to a line: `kind` is its keyword (while, for, if, elif, else, except,
    finally, with).

    `text` is its head in one line; of an `else` that of the statement it belongs to. `last`: the block's last line.
    `deciding`: of a `while` the statements in it that change what its condition names, or that it tries where it has
    none; of an `except` the statements that were tried. `yields`: of a loop that hands something out in each round.
    `met`, `unmet`: the conditions in a `while` that have to be met, or not to be met (they send it round before), for any of
    the statements that change what its condition names to be run.
    """

    line: int
    last: int
    kind: str
    text: str
    deciding: tuple[str, ...] = ()
    yields: bool = False
    met: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()

    @property
    def is_loop(self) -> bool:
        return self.kind in ("while", "for")


@dataclass(frozen=True, slots=True)
class Leave:
    """A `break`, `continue` or `return` of the same function, under a condition. `loop`: the line of the loop that it
    leaves or goes on with, 0 for a return."""

    line: int
    word: str
    loop: int
    under: Block


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name stands for, by the one statement that defines it: the value assigned to it, what a function of that name
    returns, or the loop in each round of which a list gets an item (`kind` value, function or filled). Of two statements by
    one or the other of which it is defined (either), `text` is "A` or `B". `file`: where that is, of the first."""

    name: str
    kind: str
    text: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Link:
    """A statement by which a value comes about. `kind`: value (`name` is `text`), item (one of `text`, in a `for`), changes (the
    statement `text` changes it), given (`text` gives it to an object that has `name`), returns (what the function called
    `name` gives), parameter (the number of an argument, `text`), or also (`text` draws from the same generator).

    `own`: in the function of the place itself. `guard`: the condition under which it is come to, or where it `passes` that
    one goes past it; `filters`: the expression that leaves out what does not meet a condition.
    """

    kind: str
    name: str
    text: str
    file: str
    line: int
    own: bool = False
    guard: str = ""
    guard_line: int = 0
    passes: bool = False
    filters: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from that the statement at the line `head` asks for, from there on: the last link, or where there is
    none the head itself, need not come to the same on all ranks. `kind`: why (`origin_kinds.KINDS`). `argument`: of the call
    there, what is given to it: "run:2", "run:seed"."""

    head: int
    kind: str
    links: tuple[Link, ...] = ()
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent or written (`text`) in the loop around a line, and what leads through a round of it without that: an
    `if`, `else` (of the `if` that its text is), `match` or `except`."""

    file: str
    line: int
    text: str
    past: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class ProgramPlace:
    """A line of a function: its statement, the blocks around it from the innermost to the function's, the ways past
    it, and what the names in all these stand for, where one statement says so. `made`: the statement that made what it
    calls `wait` of, as far as names in the same file show. `awaited`: the key that it asks a store for, if what it asks is
    one, with {expressions} in place of values. `own_loop`: of the head of a `while`, which is run in each round, that loop.
    `origins`: of the heads around it, of those of the ways past it, and of the statement itself. `answer`: where a round of a
    loop around it may have none."""

    file: str
    line: int
    function: str
    text: str
    around: tuple[Block, ...] = ()
    leaves: tuple[Leave, ...] = ()
    names: tuple[Meaning, ...] = ()
    made: str = ""
    awaited: str = ""
    own_loop: Block | None = None
    origins: tuple[Origin, ...] = ()
    answer: Answer | None = None

    @property
    def inside(self) -> tuple[Block, ...]:
        """The blocks around it, and the loop of whose condition it is."""
        return self.around if self.own_loop is None else (self.own_loop, *self.around)

    def meaning(self, name: str) -> Meaning | None:
        return next((one for one in self.names if one.name == name), None)


@dataclass(frozen=True, slots=True)
class Statement:
    """One that nobody need be at: it `sets` the key of a store, or `unsets` one, `makes_group`, `lets_go` of a message that it
    begins, is one of `messages` (its key is send or receive), `stops` a process by a signal, `ends_wait` (its key is what it
    calls of what: "ready.put"), or is `in_destructor`: a call of a process group, which is then its key, in `__del__` or in a
    method that this calls.

    `around` and `leaves`: the blocks that it is in, and the ways past it, also those of the only line that calls its
    function. `called_in` and `called_at`: these lines and their functions, outwards ("" is the module itself).
    """

    kind: str
    file: str
    line: int
    function: str
    text: str
    key: str = ""
    called_in: tuple[str, ...] = ()
    called_at: tuple[int, ...] = ()
    around: tuple[Block, ...] = ()
    leaves: tuple[Leave, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramRead(Observation):
    """Of one process. A file that could not be read, or was written after the process had started, has no places.
    `statements`: of these files, and of modules that they import. `command`: of a process beside the ranks that may have
    stopped one; its statements say where."""

    pid: int
    places: tuple[ProgramPlace, ...]
    statements: tuple[Statement, ...] = ()
    command: str = ""


@dataclass(frozen=True, slots=True)
class StarterSeen(Observation):
    """The process that has started these `ranks` of a machine. `ended_faults`: page faults (minor) of all that it has started and
    that had ended by then; a program has some for its start alone. `alone`: no other Python program that it has started lives."""

    pid: int
    command: str
    ranks: tuple[int, ...]
    ended_faults: int
    alone: bool


@dataclass(frozen=True, slots=True)
class Variable:
    """`name` may be that of an attribute (self.path); `text` is what its repr would say, cut and without secrets."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that is there: by its `name` what is, or keeps, it ("self.error"), its class and text, and the frames
    that it has come through, outermost first."""

    name: str
    error: str
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class FrameVariables:
    """Of one frame. `called`: a library's function, of which only the arguments are reported. `raised`: exceptions among
    its variables, and such as these keep."""

    thread_id: int
    function: str
    file: str
    line: int
    called: bool
    variables: tuple[Variable, ...]
    raised: tuple[Raised, ...] = ()


@dataclass(frozen=True, slots=True)
class AsyncTask:
    """A task of asyncio that waits: the frames of its coroutines, outermost first. `awaits`: "tasks" (one or several, of
    gather or wait too), "future", or "" where that is not known. One that has ended with an exception, which it still
    keeps, has no frames, but the `name` of its function, that `error`, and the frames through which it was `raised`."""

    frames: tuple[Frame, ...]
    awaits: str = ""
    name: str = ""
    error: str = ""
    raised: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A small file that a variable names. `state` of the process whose number it holds: gone, replaced (another one has the
    number since), lives or unknown; unnumbered where it holds none (`pid` is 0). `older`: the file is older than the rank."""

    path: str
    age_seconds: float
    pid: int
    state: str
    older: bool


@dataclass(frozen=True, slots=True)
class Reached:
    """A limit that a process has come to. `kind`: file_size (RLIMIT_FSIZE: the file is as long as it may make one; `value` in
    bytes), open_files (RLIMIT_NOFILE: it has `value` descriptors, as many as it may), file_system (the one of a file that it
    has open to write has no room left for it; `value` is its size in bytes). `fd`: by which it has `path` open, -1 for none."""

    kind: str
    path: str
    fd: int
    value: int


@dataclass(frozen=True, slots=True)
class Folder:
    """One that a variable names, with the names of all that is in it and their ages in seconds."""

    path: str
    names: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A file of data that a process has mapped. `private`: for itself alone (copy on write); `written`: it has written there,
    which reached neither the file nor anybody else."""

    path: str
    private: bool
    written: bool


@dataclass(frozen=True, slots=True)
class VariablesRead(Observation):
    """Of one process, frames outermost first within a thread. `tasks`: where a thread of it is in an event loop;
    `tasks_left_out`: how many more it has. `monotonic`, `time`: what the host's clocks said then; 0.0 for not known.
    `handled`: by its thread, the exception in whose handler that is."""

    pid: int
    frames: tuple[FrameVariables, ...]
    tasks: tuple[AsyncTask, ...] = ()
    marks: tuple[Mark, ...] = ()
    tasks_left_out: int = 0
    monotonic: float = 0.0
    time: float = 0.0
    reached: tuple[Reached, ...] = ()
    folders: tuple[Folder, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    handled: tuple[tuple[int, Raised], ...] = ()
