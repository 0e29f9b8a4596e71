"""Tasks of asyncio: what each awaits, by the frames of its coroutines, which lie on no thread's stack while they wait.

The way is asyncio's own set of tasks -> their coroutines -> what each of these awaits. Fields of C objects are found by
what they point to, so that only the order of a task's last fields is taken as known (CPython 3.11-3.13).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from diag.sources.stacks.remote_stack.memory import Torn
from diag.sources.stacks.remote_stack.names import global_of
from diag.sources.stacks.remote_stack.objects import LEAST_ADDRESS, Objects

_MOST_TASKS = 64
_MOST_LOOKED_AT = 4096  # places of the set
_DEEPEST = 32  # coroutines that await each other
_SETS = ("_scheduled_tasks", "_all_tasks")  # of asyncio.tasks: 3.12 on, and before
_FIRST = 16  # the first field of a weak reference, an iterator of a future, a wrapper of a coroutine
_FRAMED = ("coroutine", "generator", "async_generator")  # each with its frame at its end
_WRAPS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow")
_STATE_BEFORE = 5  # gi_frame_state, an int8 before the frame: below 0 while it waits
_STACKTOP = 64  # of _PyInterpreterFrame: how many of its slots are in use
_SET_TABLE = 32  # of PySetObject: its mask, and the table itself
_MOST_FIELDS = 64  # words of a task
_GATHERS = "_GatheringFuture"

# (function, file, line) by the address of a code object and of the instruction.
Located = Callable[[int, int], tuple[str, str, int]]


class Tasks:
    """Of one process. Raises Torn where the set of tasks cannot be read."""

    def __init__(self, objects: Objects, located: Located) -> None:
        self._objects, self._memory, self._located = objects, objects.memory, located
        self._coro: dict[int, int] = {}  # by a task's type, where its coroutine is

    def read(self, interpreter: int) -> tuple[list[dict[str, Any]], int]:
        """[{"frames": [[function, file, line], ...], "awaits": "tasks", "future" or ""}, ...], frames outermost first; and how
        many tasks are not among them: more than are read, or such as did not wait just then."""
        places = list(self._places(interpreter))
        known = {*places}
        found = []
        for task in places[:_MOST_TASKS]:
            try:
                frames, awaited = self._task(task)
            except (Torn, struct.error, OverflowError):
                continue  # it has ended meanwhile
            if frames:
                found.append({"frames": frames, "awaits": self._kind_of(awaited, known)})
        return found, len(places) - len(found)

    def _places(self, interpreter: int) -> Iterator[int]:
        weak_set = 0
        for name in _SETS:
            weak_set = weak_set or global_of(self._objects, interpreter, "asyncio.tasks", name)
        if not weak_set:
            return
        pairs = self._objects.attributes(weak_set)
        data = next((value for key, value in pairs if self._objects.text(key) == "data"), 0)
        mask, table = struct.unpack("<QQ", self._memory.read(data + _SET_TABLE, 16))
        if mask >= _MOST_LOOKED_AT:
            raise Torn("more tasks than are looked at")
        for key, _ in struct.iter_unpack("<QQ", self._memory.read(table, 16 * (mask + 1))):
            if key >= LEAST_ADDRESS and "eference" in self._objects.kind_of(key).name:
                task = self._memory.word(key + _FIRST)
                if self._name(task) != "NoneType":
                    yield task

    def _task(self, task: int) -> tuple[list[list[Any]], int]:
        """Its frames, and the object that the innermost of them awaits."""
        kind = self._objects.kind_of(task)
        count = min(kind.basic_size // 8, _MOST_FIELDS)
        words = self._objects.words(task, count)
        at = self._coro.get(kind.address)
        if at is None:
            at = next((one for one in range(2, count) if self._name(words[one]) in _FRAMED), 0)
            if not at:
                raise Torn("a task without a coroutine")
            self._coro[kind.address] = at
        frames: list[list[Any]] = []
        awaited = words[at]
        for _ in range(_DEEPEST):
            name = self._name(awaited)
            if name in _WRAPS:
                awaited = self._memory.word(awaited + _FIRST)
            elif name in _FRAMED:
                place, awaited = self._frame(awaited)
                if place is None:
                    return [], 0  # it runs, or is about to
                frames.append(list(place))
            else:
                break
        return frames, awaited

    def _frame(self, coroutine: int) -> tuple[tuple[str, str, int] | None, int]:
        """Where it waits, and for which object; None of one that does not wait."""
        layout = self._objects.layout
        frame = coroutine + self._objects.kind_of(coroutine).basic_size - layout.frame_locals
        state = self._memory.read(frame - _STATE_BEFORE, 1)[0]
        if state < 128:
            return None, 0
        head = self._memory.read(frame, layout.frame_locals)
        code, instruction = (
            struct.unpack_from("<Q", head, at)[0] for at in (layout.frame_code, layout.frame_instr)
        )
        (used,) = struct.unpack_from("<i", head, _STACKTOP)
        if not 0 < used < 1 << 16:
            raise Torn("a frame that awaits nothing")
        return self._located(code, instruction), self._memory.word(
            frame + layout.frame_locals + 8 * (used - 1)
        )

    def _kind_of(self, awaited: int, tasks: set[int]) -> str:
        name = self._name(awaited)
        future = self._memory.word(awaited + _FIRST) if name == "FutureIter" else awaited
        if future in tasks or self._name(future) == _GATHERS:
            return "tasks"
        return "future" if name == "FutureIter" else ""

    def _name(self, address: int) -> str:
        """Empty for what is no object."""
        if address < LEAST_ADDRESS:
            return ""
        try:
            return self._objects.kind_of(address).name
        except (Torn, struct.error):
            return ""
