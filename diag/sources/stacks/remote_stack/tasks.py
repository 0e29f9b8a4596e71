"""Tasks of asyncio: what each awaits, by the frames of its coroutines, which lie on no thread's stack while they wait.

The way is asyncio's own set of tasks -> their coroutines -> what each of these awaits. Fields of C objects are found by
what they point to, so that only the order of a task's last fields is taken as known (CPython 3.11-3.13).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from diag.sources.stacks.remote_stack.exceptions import Exceptions, Located
from diag.sources.stacks.remote_stack.memory import Torn
from diag.sources.stacks.remote_stack.names import global_of
from diag.sources.stacks.remote_stack.objects import LEAST_ADDRESS
from diag.sources.stacks.remote_stack.values import Values

_MOST_TASKS = 64
_MOST_LOOKED_AT = 4096  # places of the set
_DEEPEST = 32  # coroutines that await each other
_SETS = ("_scheduled_tasks", "_all_tasks")  # of asyncio.tasks: 3.12 on, and before
_FIRST = 16  # the first field of a weak reference, an iterator of a future, a wrapper of a coroutine
_FRAMED = ("coroutine", "generator", "async_generator")  # each with its frame at its end
_WRAPS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow")
_QUALNAME = {11: 40, 12: 32, 13: 32}  # of PyCoroObject
_STATE_BEFORE = 5  # gi_frame_state, an int8 before the frame: below 0 while it waits
_STACKTOP = 64  # of _PyInterpreterFrame: how many of its slots are in use
_SET_TABLE = 32  # of PySetObject: its mask, and the table itself
_MOST_FIELDS = 64  # words of a task
_CANCELLED = "<CancelledError:"
_GATHERS = "_GatheringFuture"


class Tasks:
    """Of one process. Raises Torn where the set of tasks cannot be read."""

    def __init__(self, values: Values, located: Located) -> None:
        self._values, self._objects, self._located = values, values.objects, located
        self._memory = values.objects.memory
        self._coro: dict[int, int] = {}  # by a task's type, where its coroutine is

    def read(self, interpreter: int) -> tuple[list[dict[str, Any]], int]:
        """[{"frames": [[function, file, line], ...], "awaits": "tasks", "future" or ""}, ...], frames outermost first, and of
        those that have ended with an exception [{"frames": [], "name", "error", "raised": frames}, ...]; and how many tasks are
        not among them: more than are read, or such as did not wait just then."""
        places = list(self._places(interpreter))
        known = {*places}
        found: list[dict[str, Any]] = []
        ended = 0
        for task in places[:_MOST_TASKS]:
            try:
                coroutine = self._coroutine(task)
                if self._state(coroutine) > 0:
                    ended += 1
                    found += self._failed(task, coroutine)
                    continue
                frames, awaited = self._frames(coroutine)
            except (Torn, struct.error, OverflowError):
                continue  # it is gone meanwhile
            if frames:
                found.append({"frames": frames, "awaits": self._kind_of(awaited, known)})
        waiting = sum(bool(one["frames"]) for one in found)
        return found, len(places) - waiting - ended

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
            if "eference" in self._name(key):  # what was taken out leaves an object without a type behind
                task = self._memory.word(key + _FIRST)
                if self._name(task) != "NoneType":
                    yield task

    def _coroutine(self, task: int) -> int:
        kind = self._objects.kind_of(task)
        count = min(kind.basic_size // 8, _MOST_FIELDS)
        words = self._objects.words(task, count)
        at = self._coro.get(kind.address)
        if at is None:
            at = next((one for one in range(2, count) if self._name(words[one]) in _FRAMED), 0)
            if not at:
                raise Torn("a task without a coroutine")
            self._coro[kind.address] = at
        return words[at]

    def _failed(self, task: int, coroutine: int) -> Iterator[dict[str, Any]]:
        """Of one that has ended: the exception that it keeps until somebody asks for it."""
        kind = self._objects.kind_of(task)
        for word in self._objects.words(task, min(kind.basic_size // 8, _MOST_FIELDS))[2:]:
            value = self._values.named("", word) if self._name(word) else None
            if value is not None and value.exception and not value.text.startswith(_CANCELLED):
                name = self._memory.word(coroutine + _QUALNAME[self._objects.layout.minor])
                raised = Exceptions(self._values, self._located).frames(word)
                yield {"frames": [], "name": self._objects.text(name), "error": value.text, "raised": raised}
                return

    def _frames(self, coroutine: int) -> tuple[list[list[Any]], int]:
        """Of a task that waits, and the object that the innermost of them awaits."""
        frames: list[list[Any]] = []
        awaited = coroutine
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
        frame = self._frame_of(coroutine)
        if self._state(coroutine) >= 0:
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

    def _frame_of(self, coroutine: int) -> int:
        return coroutine + self._objects.kind_of(coroutine).basic_size - self._objects.layout.frame_locals

    def _state(self, coroutine: int) -> int:
        """Below 0 while it waits, above when it has ended."""
        raw = self._memory.read(self._frame_of(coroutine) - _STATE_BEFORE, 1)
        return int.from_bytes(raw, "little", signed=True)

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
