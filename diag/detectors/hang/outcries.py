"""Exceptions and aborts that ranks printed, with their times: of a thread, a child process, the rank itself, or native
code. What they mean for a hang is decided in `last_words`."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from diag.detectors.last_words import native
from diag.knowledge.tracebacks import FRAME, OF_LAUNCHER, PLACE, PREFIX
from diag.model.observations import Frame, KernelLine, LogLine, PlainLines, ProcessTree, QuietLines
from diag.state.log import lines_of

# CPython 3.8-3.14, threading.excepthook and multiprocessing.Process._bootstrap, each above its traceback:
#   Exception in thread Thread-3 (upload):
#   Process ForkPoolWorker-3:
_OF_THREAD = re.compile(r"Exception in thread (?P<name>[^\n]{1,100}?)(?: \([^()\n]{1,80}\))?:\s*$")
_OF_PROCESS = re.compile(r"Process (?P<name>[\w.:-]{1,80}):\s*$")
_HEAD = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:[A-Za-z_]\w{0,100}\.){0,12}[A-Za-z_]\w{0,100}(?:: .*|:)?$")
_NCCL = " NCCL WARN "
_NATIVE = ("terminate called ", "Fatal Python error: ")
_IGNORED = "Exception ignored"
_CHAINED = ("During handling of the above", "The above exception was the direct")
_BEGINS = ("Process ", *_CHAINED)
# Linux 5.4-6.18: arch/x86/mm/fault.c and kernel/traps.c, kernel/signal.c (print-fatal-signals), mm/oom_kill.c. What of it is
# which signal.
_ENDED = re.compile(
    r"(?P<pid>\d+)\]: (?P<fault>segfault) at \S+ ip |traps: \S{1,40}\[(?P<trapped>\d+)\] (?:trap )?(?P<trap>[a-z][a-z ]{1,40}?) ip:"
    r"|/(?P<fatal>\d+): potentially unexpected fatal signal (?P<number>\d+)|(?P<oom>Killed) process (?P<killed>\d+) \("
)
_IN = re.compile(r" in (?P<library>[\w.+-]{1,80})\[")
_TRAPS = {"invalid opcode": "SIGILL", "divide error": "SIGFPE", "int3": "SIGTRAP", "stack segment": "SIGBUS"}

_KEPT = 64
_STRANGERS = 8  # lines of others that may be between a frame and its exception
_LONGEST = 300
_READ = 2000  # of a line
_MOST_FRAMES = 64  # the outermost
_READINGS = 4  # of what each rank wrote
_LATE_SECONDS = 1.0  # a line is read a moment after it was written


@dataclass(slots=True)
class Outcry:
    """`kind`: thread (it ended of this), process (a child did), traceback, native, nccl, kernel (by its log, process `name`
    ended of this; `rank` -1). `rank` is None in output that ranks share: `may` are then those that wrote enough at that
    time, once they were read."""

    at: float
    rank: int | None
    kind: str
    name: str  # of the thread or process
    error: str
    size: int  # characters of the whole
    may: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    frames: tuple[Frame, ...] = ()  # of its traceback, outermost first

    def by(self, rank: int) -> bool:
        """By this rank, for sure."""
        return self.rank == rank or (self.rank is None and self.may == {rank})

    def may_be_by(self, rank: int) -> bool:
        return self.rank == rank or (self.rank is None and rank in self.may)


@dataclass(slots=True)
class _Block:
    """A traceback that is being read."""

    kind: str
    name: str
    size: int = 0
    open_for: int = _STRANGERS
    framed: bool = False
    frames: list[Frame] = field(default_factory=list)
    replaces: Outcry | None = None  # what was raised before it, and handled


class Outcries:
    """Reads each line of output once: a line of no traceback costs a few searches of a word."""

    listens = (LogLine, PlainLines, QuietLines, ProcessTree, KernelLine)

    def __init__(self) -> None:
        self._seen: deque[Outcry] = deque(maxlen=_KEPT)
        self._blocks: dict[tuple[int | None, str], _Block] = {}
        self._last: dict[tuple[int | None, str], Outcry] = {}
        self._written: dict[int, deque[tuple[float, int]]] = {}  # characters by each rank, as last read

    def __iter__(self) -> Iterator[Outcry]:
        return iter(self._seen)

    def observe(self, at: float, fact: LogLine | PlainLines | QuietLines | ProcessTree | KernelLine) -> None:
        if isinstance(fact, ProcessTree):
            self._read(at, fact)
        elif isinstance(fact, KernelLine):
            if fact.host_pids and (died := _death(fact.text)) is not None:
                self._seen.append(Outcry(at, -1, "kernel", str(died[0]), died[1], 0))
        elif isinstance(fact, (PlainLines, QuietLines)):
            for line in lines_of(fact) if self._blocks else ():  # a traceback that may go on
                if not line.bar:
                    self._line(at, (line.rank, line.stream), PREFIX.sub("", line.text[:_READ]))
                if not self._blocks:
                    return
        elif not fact.bar and (self._blocks or _may_begin(fact.text)):
            self._line(at, (fact.rank, fact.stream), PREFIX.sub("", fact.text[:_READ]))

    def _line(self, at: float, key: tuple[int | None, str], text: str) -> None:
        block = self._blocks.get(key)
        if _may_begin(text) and not (block is not None and _HEAD in text and not block.framed):
            self._begin(at, key, text)
        elif block is not None:
            self._goes_on(at, key, block, text)

    def _begin(self, at: float, key: tuple[int | None, str], text: str) -> None:
        size, last = len(text) + 1, self._last.get(key)
        if found := _OF_THREAD.search(text):
            self._blocks[key] = _Block("thread", found["name"], size)
        elif found := _OF_PROCESS.match(text):
            self._blocks[key] = _Block("process", found["name"], size)
        elif _IGNORED in text:
            self._blocks[key] = _Block("", "", size)
        elif text.startswith(_CHAINED):
            if last is not None:  # of a chain the last is what nobody caught
                self._blocks[key] = _Block(last.kind, last.name, last.size + size, replaces=last)
        elif _HEAD in text:
            self._blocks[key] = _Block("traceback", "", size)
        elif _NCCL in text:
            self._add(at, key, _Block("nccl", "", size), text.partition(_NCCL)[2])
        elif any(mark in text for mark in _NATIVE):
            self._add(at, key, _Block("native", "", size), native([text]) or text)

    def _goes_on(self, at: float, key: tuple[int | None, str], block: _Block, text: str) -> None:
        block.size += len(text) + 1
        if FRAME.match(text):
            block.framed, block.open_for = True, _STRANGERS
            if (found := PLACE.search(text)) is not None and len(block.frames) < _MOST_FRAMES:
                block.frames.append(Frame(found["function"], found["file"], int(found["line"])))
        elif block.framed and _RAISED.match(text):
            del self._blocks[key]
            if not any(name in text for name in OF_LAUNCHER):
                self._add(at, key, block, text)
        elif text.strip() and not text[0].isspace() and _HEAD not in text:
            block.open_for -= 1
            if not block.open_for:
                del self._blocks[key]

    def _add(self, at: float, key: tuple[int | None, str], block: _Block, error: str) -> None:
        if not block.kind:
            return
        error = error.strip()
        error = error if len(error) <= _LONGEST else f"{error[: _LONGEST - 3]}..."
        if block.replaces is not None and block.replaces in self._seen:
            self._seen.remove(block.replaces)
        self._last[key] = Outcry(
            at, key[0], block.kind, block.name, error, block.size, frames=tuple(block.frames)
        )
        self._seen.append(self._last[key])

    def _read(self, at: float, fact: ProcessTree) -> None:
        """Which ranks wrote so much in the time around the lines that nobody's name is on?"""
        if fact.rank is None or fact.main.write_chars is None:
            return
        kept = self._written.setdefault(fact.rank, deque(maxlen=_READINGS))
        for outcry in self._seen:
            if outcry.rank is not None or fact.rank in outcry.read or at < outcry.at:
                continue
            outcry.read.add(fact.rank)
            before = [count for when, count in kept if when < outcry.at - _LATE_SECONDS]
            if not before or fact.main.write_chars - before[-1] >= outcry.size:
                outcry.may.add(fact.rank)
        kept.append((at, fact.main.write_chars))


def _death(line: str) -> tuple[int, str] | None:
    """The process that a line of the kernel's log says to have ended, and of what.

    >>> _death("[ 71.4] traps: python[9430] general protection fault ip:7f sp:7f error:0 in libc.so.6[1a164d,7ff+189000]")
    (9430, 'SIGSEGV (general protection fault in libc.so.6)')
    >>> _death("[700.0] python3[20342]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2[7f3c+8e]")
    (20342, 'SIGSEGV (segfault in libnccl.so.2)')
    >>> _death("[9.1] Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB")
    (77, 'SIGKILL (out of memory)')
    >>> _death("[9.1] eth0: link up")
    """
    found = _ENDED.search(line[:_READ])
    if found is None:
        return None
    if found["oom"]:
        return int(found["killed"]), "SIGKILL (out of memory)"
    if found["number"]:
        try:
            return int(found["fatal"]), signal.Signals(int(found["number"])).name
        except ValueError:
            return None
    library = _IN.search(line[:_READ])
    what = (found["trap"] or found["fault"]) + (f" in {library['library']}" if library is not None else "")
    return int(found["trapped"] or found["pid"]), f"{_TRAPS.get(found['trap'] or '', 'SIGSEGV')} ({what})"


def _may_begin(text: str) -> bool:
    return (
        "Traceback (" in text
        or "Exception i" in text
        or _NCCL in text
        or "terminate called " in text
        or "Fatal Python error: " in text
        or text.startswith(_BEGINS)
    )
