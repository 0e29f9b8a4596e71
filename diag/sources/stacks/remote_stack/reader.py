"""Stacks of all threads of one CPython process, read from its memory while it runs.

The way is interpreter -> its thread states -> their frames -> code objects. What was learnt about a code
object is kept and checked against its head at each sample, so that a sample of a rank that is stuck is a
few dozen reads.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diag.sources.host.process_tree import colon_fields
from diag.sources.stacks.remote_stack.arguments import (
    TORCH,
    awaits_object,
    call_of,
    exchange_of,
    slots_of,
    uses_isend,
)
from diag.sources.stacks.remote_stack.exceptions import Exceptions
from diag.sources.stacks.remote_stack.image import Unsupported, find_symbols
from diag.sources.stacks.remote_stack.layouts import DEBUG_COOKIE, DEBUG_SIZE, Layout, layout_of, published
from diag.sources.stacks.remote_stack.lines import line_of
from diag.sources.stacks.remote_stack.memory import Memory, Torn
from diag.sources.stacks.remote_stack.names import ThreadNames
from diag.sources.stacks.remote_stack.objects import LEAST_ADDRESS, Objects
from diag.sources.stacks.remote_stack.packages import Packages
from diag.sources.stacks.remote_stack.tasks import Tasks
from diag.sources.stacks.remote_stack.values import Redact, Values
from diag.sources.stacks.remote_stack.variables import FrameReader

_MOST_THREADS = 500  # ours, as for py-spy
_MOST_FRAMES = 1000  # Python's own recursion limit
_MOST_CODES = 20_000  # kept of one process: a long training job runs some thousands
_LONGEST_TABLE = 1 << 20
_LARGEST_CHUNK = 1 << 20
_OWNER_GENERATOR = 1
_TRAMPOLINE = "<interpreter trampoline>"
_TRIES = 6
_STACK_TRIES = 3
_MOST_OBJECTS = 16  # numbers: two of each
_SAME = 3  # so often the same unusual beginning: an embedded interpreter, a fork out of a thread
# of main threads; those of forked and spawned children are _bootstrap
_BEGINS = ("<module>", "_run_module_as_main")
_LOOP = "asyncio/base_events.py"
_FIRST_FIELD = 16  # behind PyObject_HEAD: wr_object of a weak reference, lock_lock of a lock


# Of a stack of (function, file, line), outermost first: which frames are read, and whether only the arguments.
Choice = Callable[[Sequence[tuple[str, str, int]]], Sequence[tuple[int, bool]]]


class _Code:
    """A code object: the head that it is known by, and what a frame needs of it."""

    __slots__ = ("awaits", "call", "file", "first", "head", "isend", "lines", "name", "slots", "table")

    def __init__(self, head: bytes, name: str, file: str, table: bytes, first: int) -> None:
        self.head, self.name, self.file, self.table, self.first = head, name, file, table, first
        self.lines: dict[int, int] = {}
        self.call = call_of(name, file)
        self.awaits = awaits_object(name, file)
        self.isend: bool | None = False if TORCH in file else None  # not looked up yet
        self.slots: tuple[int, ...] | None = None  # of a send or receive: where its arguments are

    def line(self, instruction: int) -> int:
        line = self.lines.get(instruction)
        if line is None:
            line = self.lines[instruction] = line_of(self.table, self.first, instruction)
        return line


class ProcessStacks:
    """One process. `lock` is for whoever reads: one at a time, since the kernel may hold a reading up."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        """Raises Unsupported, Torn, or OSError when the process has ended or may not be read."""
        self.pid = pid
        self.lock = threading.Lock()
        self._memory = Memory(pid, proc)
        try:
            self._symbols = symbols = find_symbols(pid, proc)
            missing = [
                name for name in ("PyCode_Type", "PyUnicode_Type", "PyBytes_Type") if name not in symbols
            ]
            if missing:
                raise Unsupported(f"no symbols {missing}")
            self._layout = self._find_layout()
            self._frame = self._layout.frame_struct()
            self._own_tid = _tid_inside(pid, proc)
        except BaseException:
            self._memory.close()
            raise
        self._runtime = symbols["_PyRuntime"]
        self._codes: dict[int, _Code] = {}
        self._packages = Packages(pid, proc)
        named = {"PyDict_Type", "PyModule_Type"} <= set(symbols)
        self._objects = Objects(self._memory, self._layout, symbols)
        self._names = ThreadNames(self._objects) if named else None

    def close(self) -> None:
        self._memory.close()

    def _find_layout(self) -> Layout:
        head = self._memory.read(self._symbols["_PyRuntime"], DEBUG_SIZE)
        if head[:8] == DEBUG_COOKIE:
            return published(head)
        if "Py_Version" not in self._symbols:
            raise Unsupported("no version is given")
        return layout_of(struct.unpack("<I", self._memory.read(self._symbols["Py_Version"], 4))[0])

    # -- a sample -----------------------------------------------------------------------------------------

    def read(self, seconds: float) -> dict[str, Any]:
        """{"codes": [[name, file], ...], "threads": [{"id", "name", "owns_gil", "frames": [code, line, ...],
        "exchange"?: [call, peer, tag, uses isend], "objects"?: [code, address, ...]}, ...]}.

        Frames are outermost first; of more than 1000 the innermost. `objects`: the queues, events and futures that it
        waits for, by the method that does, innermost first. Raises Torn, Gone or TimeoutError.
        """
        sample, threads = self._sample(seconds)
        return {"codes": sample.codes, "threads": threads}

    def _sample(self, seconds: float) -> tuple[_Sample, list[dict[str, Any]]]:
        self._memory.begin(seconds)
        begins: list[str] = []
        last = "the main stack began elsewhere each time"
        for _ in range(_TRIES):
            try:
                sample = _Sample(self)
                threads = sample.threads()
            except (Torn, struct.error, OverflowError) as error:
                last = str(error)
                continue
            begin = sample.main_begin(threads)
            begins.append(begin)
            if begin in _BEGINS or begin.endswith("_bootstrap") or begins.count(begin) == _SAME:
                return sample, threads
        raise Torn(last)

    def variables(
        self, seconds: float, choose: Choice, redact: Redact, paths: list[str] | None = None
    ) -> dict[str, Any]:
        """{"threads": [{"id", "name", "frames": [{"function", "file", "line", "called", "values": [[name, value], ...],
        "raised"?}, ...], "handled"?}, ...], of the frames chosen of each thread, outermost first, and where one of them is in
        asyncio's event loop "tasks" and "tasks_left_out": see `Tasks.read`. `raised`: the exceptions among the values, and
        `handled` that in whose handler the thread is, see `Exceptions.each`. `paths` is given the texts that may name files,
        the innermost frame's first, with whatever secrets are in them. Raises as `read`."""
        sample, threads = self._sample(seconds)
        self._objects.begin()
        values = Values(self._objects, redact)
        reader, exceptions = FrameReader(values), Exceptions(values, sample.located)
        found = []
        for thread, places, state in zip(threads, sample.places, sample.states, strict=True):
            numbers = thread["frames"]
            stack = [
                (*sample.codes[number], line)
                for number, line in zip(numbers[::2], numbers[1::2], strict=True)
            ]
            frames = []
            for at, called in choose(stack) if len(places) == len(stack) else ():
                try:
                    read = reader.of(*places[at], arguments=called)
                except (Torn, struct.error, OverflowError):
                    continue  # it has returned meanwhile
                function, file, line = stack[at]
                frame = {"function": function, "file": file, "line": line, "called": called}
                raised = exceptions.each(reader.exceptions)
                frame |= {"values": [list(value) for value in read]} | ({"raised": raised} if raised else {})
                frames.append(frame)
            if frames:
                row = {"id": thread["id"], "name": thread["name"], "frames": frames}
                handled = exceptions.handled(state)
                found.append(row | ({"handled": handled} if handled else {}))
        in_loop = any(name.endswith("_run_once") and file.endswith(_LOOP) for name, file in sample.codes)
        tasks = self._tasks(sample, values) if in_loop and self._names else {}
        if paths is not None:
            paths += dict.fromkeys(reversed(reader.paths))
        return {"threads": found, **tasks}

    def _tasks(self, sample: _Sample, values: Values) -> dict[str, Any]:
        interpreter = self._memory.word(self._runtime + self._layout.interpreters_main)
        try:
            tasks, left_out = Tasks(values, sample.located).read(interpreter)
        except (Torn, struct.error, OverflowError):
            return {}
        return {"tasks": tasks, "tasks_left_out": left_out}

    def joins(self, seconds: float) -> tuple[dict[int, int], dict[int, str]]:
        """Address of the lock that Thread.join() of a thread waits for, to the thread's id (none from 3.13 on, where
        the waiter's own stack holds that lock); and of all threads that run Python the name by id, empty where
        threading knows none. Raises as `read`."""
        memory, layout = self._memory, self._layout
        memory.begin(seconds)
        interpreter = memory.word(self._runtime + layout.interpreters_main)
        named = self._names.of(interpreter) if self._names else {}
        locks: dict[int, int] = {}
        names: dict[int, str] = {}
        state = memory.word(interpreter + layout.interp_threads_head)
        for _ in range(_MOST_THREADS):
            if not state:
                break
            data = memory.read(state, layout.thread_size)
            native = _word(data, layout.thread_native_id) & 0x7FFFFFFF
            names[native] = named.get(_word(data, layout.thread_id), "")
            reference = _word(data, layout.thread_on_delete) if layout.thread_on_delete is not None else 0
            if reference and (lock := memory.word(reference + _FIRST_FIELD)) > LEAST_ADDRESS:
                locks[memory.word(lock + _FIRST_FIELD)] = native
            state = _word(data, layout.thread_next)
        return locks, names


class _Sample:
    """One walk through the thread states."""

    def __init__(self, of: ProcessStacks) -> None:
        self._of, self._memory, self._layout = of, of._memory, of._layout
        self._unpack = of._frame.unpack_from
        self._frame_size = of._frame.size
        self._seen: dict[int, tuple[int, _Code]] = {}  # code objects of this sample: their place in `codes`
        self.codes: list[list[str]] = []
        self._exchange: list[Any] | None = None  # of the stack that is being read
        self._addresses: list[tuple[int, int]] = []  # of its frames and their code, innermost first
        self.places: list[list[tuple[int, int]]] = []  # of each thread, outermost first
        self.states: list[bytes] = []  # of each thread
        self._objects: list[int] = []

    def main_begin(self, threads: list[dict[str, Any]]) -> str:
        """The outermost function of the main thread: where a half-read stack shows."""
        for thread in threads:
            if thread["id"] == self._of.pid or thread["name"] == "MainThread":
                frames = thread["frames"]
                if len(frames) >= 2 * _MOST_FRAMES:
                    return "<module>"
                return self.codes[frames[0]][0] if frames else ""
        return ""

    def threads(self) -> list[dict[str, Any]]:
        memory, layout, of = self._memory, self._layout, self._of
        interpreter = memory.word(of._runtime + layout.interpreters_main)
        if not interpreter:
            raise Torn("no interpreter yet")
        names = of._names.of(interpreter) if of._names else {}
        holder = self._gil_holder(interpreter)
        found: list[dict[str, Any]] = []
        states: set[int] = set()
        state = memory.word(interpreter + layout.interp_threads_head)
        while state:
            if state in states or len(states) >= _MOST_THREADS:
                raise Torn("the threads are no list")
            states.add(state)
            data = memory.read(state, layout.thread_size)
            interp, ident, native = (
                _word(data, place)
                for place in (layout.thread_interp, layout.thread_id, layout.thread_native_id)
            )
            if interp != interpreter:
                raise Torn("a thread of another interpreter")
            name = names.get(ident, "")
            own = native == of._own_tid or (name == "MainThread" and native == 0)
            self._exchange, self._addresses, self._objects = None, [], []
            thread = {
                "id": of.pid if own else native & 0x7FFFFFFF,
                "name": name,
                "owns_gil": state == holder,
                "frames": self._stack(state, data),
            }
            self.places.append(self._addresses[::-1])
            self.states.append(data)
            if self._exchange:
                thread["exchange"] = self._exchange
            if self._objects:
                thread["objects"] = self._objects
            found.append(thread)
            state = _word(data, layout.thread_next)
        if not found:
            raise Torn("no threads")
        return found

    def _gil_holder(self, interpreter: int) -> int:
        layout = self._layout
        own = layout.minor == 11
        gil = self._of._runtime + layout.gil if own else self._memory.word(interpreter + layout.gil)
        data = self._memory.read(gil, 24)
        locked = struct.unpack_from("<i", data, layout.gil_locked)[0] == 1
        return _word(data, layout.gil_last_holder) if locked else 0

    def _stack(self, state: int, data: bytes) -> list[int]:
        """Code and line of each frame. Read again when it moved meanwhile; what moves all the time is taken
        as it is."""
        layout, memory = self._layout, self._memory
        place = state + layout.thread_frame
        if layout.cframe_frame is not None:
            place = _word(data, layout.thread_frame) + layout.cframe_frame
        for attempt in range(_STACK_TRIES):
            frame = memory.word(place)
            if not frame:
                return []
            chunks = _Chunks(memory, *struct.unpack("<QQ", memory.read(state + layout.thread_chunk, 16)))
            try:
                frames = self._frames(frame, chunks)
            except Torn:
                if attempt + 1 == _STACK_TRIES:
                    raise
                continue
            if memory.word(place) == frame or attempt + 1 == _STACK_TRIES:
                return frames
        return []

    def _frames(self, frame: int, chunks: _Chunks) -> list[int]:
        cstack, adaptive, size, unpack = (
            self._layout.owner_cstack,
            self._layout.code_adaptive,
            self._frame_size,
            self._unpack,
        )
        frames: list[tuple[int, int]] = []
        memory = self._memory
        self._exchange, self._addresses, self._objects = None, [], []
        for _ in range(2 * _MOST_FRAMES):  # those that C calls left between them count too
            data, at = chunks.holding(frame, size)
            code_address, previous, instruction, owner = unpack(data, at)
            if owner > cstack:
                raise Torn("a frame of no owner")
            if owner != cstack:
                known = self._seen.get(code_address)
                if known is None:
                    known = self._seen[code_address] = (len(self.codes), self._code(code_address))
                    self.codes.append([known[1].name, known[1].file])
                self._addresses.append((frame, code_address))
                frames.append((known[0], known[1].line((instruction - code_address - adaptive) // 2)))
                if known[1].awaits and len(self._objects) < _MOST_OBJECTS:
                    self._objects += [known[0], memory.word(frame + self._layout.frame_locals)]
                if known[1].call:
                    self._exchange = self._arguments(code_address, known[1], frame) or self._exchange
            if not previous and owner == _OWNER_GENERATOR:
                raise Torn("a generator that no longer runs")
            if not previous or len(frames) >= _MOST_FRAMES:
                if self._exchange:
                    self._exchange.append(self._isend({place for place, _ in frames}))
                return [number for pair in reversed(frames) for number in pair]
            frame = previous
        raise Torn("the frames do not end")

    def _arguments(self, address: int, code: _Code, frame: int) -> list[Any] | None:
        """Whom it sends to or receives from; None where that is not known."""
        objects = self._of._objects
        try:
            if code.slots is None:
                code.slots = slots_of(objects, address, code.call)
            size = self._layout.frame_locals + 8 * (max(code.slots) + 1)
            found = exchange_of(objects, self._memory.read(frame, size), code.slots)
        except Torn:
            return None
        return [code.call, *found] if found else None

    def _isend(self, places: set[int]) -> bool:
        """Any of the code of this stack uses it; where that cannot be read it may."""
        try:
            for address, (place, code) in self._seen.items():
                if place in places and code.isend is None:
                    code.isend = uses_isend(self._of._objects, address)
        except Torn:
            return True
        return any(code.isend for place, code in self._seen.values() if place in places)

    def located(self, code: int, instruction: int) -> tuple[str, str, int]:
        """Function, file and line. Raises Torn."""
        known = self._code(code)
        line = known.line((instruction - code - self._layout.code_adaptive) // 2)
        return known.name, known.file, line

    def _code(self, address: int) -> _Code:
        layout, memory, codes = self._layout, self._memory, self._of._codes
        head = memory.read(address, layout.code_adaptive)
        symbols = self._of._symbols
        if _word(head, 8) != symbols["PyCode_Type"]:
            raise Torn("not a code object")
        name, file, table = (
            _word(head, at) for at in (layout.code_qualname, layout.code_filename, layout.code_linetable)
        )
        first: int = struct.unpack_from("<i", head, layout.code_firstlineno)[0]
        key = struct.pack("<QQQi", name, file, table, first)
        known = codes.get(address)
        if known is None or known.head != key:
            if len(codes) >= _MOST_CODES:
                codes.clear()
            size = memory.read(table, 32)
            length = _word(size, 16)
            if _word(size, 8) != symbols["PyBytes_Type"] or length > _LONGEST_TABLE:
                raise Torn("not a location table")
            lines = memory.read(table + 32, length) if length else b""
            text = self._of._objects.text
            shortened = self._of._packages.shortened(text(file))
            known = codes[address] = _Code(key, text(name), shortened, lines, first)
            if known.name == _TRAMPOLINE:
                raise Torn("a frame that C has not yet, or no longer, entered")
        return known


class _Chunks:
    """The blocks of memory that a thread's frames lie in, each read at once: 30 times fewer reads, and less
    torn."""

    __slots__ = ("_address", "_data", "_memory", "_previous")

    def __init__(self, memory: Memory, chunk: int, top: int) -> None:
        self._memory, self._address, self._data, self._previous = memory, 0, b"", 0
        if chunk and 24 <= top - chunk <= _LARGEST_CHUNK:
            self._take(chunk, top - chunk)

    def _take(self, chunk: int, size: int) -> None:
        self._address, self._data = chunk, self._memory.some(chunk, size)
        self._previous = _word(self._data, 0) if len(self._data) >= 24 else 0

    def holding(self, address: int, size: int) -> tuple[bytes, int]:
        """Bytes, and where in them the frame begins. Those of generators and C calls lie elsewhere, each by
        itself."""
        at = address - self._address
        if 0 <= at <= len(self._data) - size:
            return self._data, at
        if self._previous:
            _, length, top = struct.unpack("<QQQ", self._memory.read(self._previous, 24))
            if self._previous <= address < self._previous + length <= self._previous + _LARGEST_CHUNK:
                self._take(self._previous, min(24 + 8 * top, length))
                at = address - self._address
                if 0 <= at <= len(self._data) - size:
                    return self._data, at
        return self._memory.read(address, size), 0


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _tid_inside(pid: int, proc: Path) -> int:
    """The main thread's id as the process itself sees it: another number in a container."""
    fields = colon_fields((proc / str(pid) / "status").read_text("utf-8", "replace"))
    return int(fields.get("NSpid", str(pid)).split()[-1])
