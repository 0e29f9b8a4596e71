"""Exceptions of the process: their text, and where they were raised, by the traceback that each keeps.

That which a thread handles is in its state; those that objects keep for later are found by who reads these. Offsets of
PyBaseExceptionObject, PyTracebackObject and PyFrameObject are the same in CPython 3.11-3.13, those of `exc_info` were
computed with offsetof() from the headers of each.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diag.sources.stacks.remote_stack.memory import Torn
from diag.sources.stacks.remote_stack.objects import LEAST_ADDRESS
from diag.sources.stacks.remote_stack.values import Values

_EXC_INFO = {11: 120, 12: 104, 13: 120}  # of PyThreadState: {exc_value, previous_item}
_TRACEBACK = 40
_NEXT, _FRAME, _LAST_INSTRUCTION = 16, 24, 32  # of PyTracebackObject
_OF_FRAME = 24  # f_frame of PyFrameObject
_MOST_FRAMES = 32  # of a traceback, the innermost
_MOST_WALKED = 256
_MOST_HANDLERS = 8  # one inside of another

# (function, file, line) by the address of a code object and of the instruction.
Located = Callable[[int, int], tuple[str, str, int]]


class Exceptions:
    """Of one process. Leaves out what is gone meanwhile."""

    def __init__(self, values: Values, located: Located) -> None:
        self._values, self._located = values, located
        self._memory, self._layout = values.objects.memory, values.objects.layout

    def each(self, found: Mapping[str, int]) -> list[dict[str, Any]]:
        """[{"name", "error": "KeyError: 'rows'", "frames": [[function, file, line], ...]}, ...] of these addresses, frames
        outermost first."""
        rows = []
        for name, address in found.items():
            with contextlib.suppress(Torn, struct.error, OverflowError):
                rows.append(self._row(name, address))
        return rows

    def handled(self, state: bytes) -> dict[str, Any]:
        """That in whose handler a thread is, by its state; empty for none."""
        with contextlib.suppress(Torn, struct.error, OverflowError):
            if address := self._top(state):
                return self._row("", address)
        return {}

    def frames(self, address: int) -> list[list[Any]]:
        """Those that it has come through, outermost first. Raises Torn."""
        return [list(frame) for frame in self._traceback(address)][-_MOST_FRAMES:]

    def _row(self, name: str, address: int) -> dict[str, Any]:
        value = self._values.named(name, address)
        if value is None or not value.exception:
            raise Torn("no exception")
        frames = self.frames(address)
        return {"name": name, "error": value.text.strip("<>").removesuffix(": "), "frames": frames}

    def _top(self, state: bytes) -> int:
        """Its address; 0 for none."""
        item = int.from_bytes(state[(at := _EXC_INFO[self._layout.minor]) : at + 8], "little")
        for _ in range(_MOST_HANDLERS):
            if item < LEAST_ADDRESS:
                break
            value, item = struct.unpack("<QQ", self._memory.read(item, 16))
            if value >= LEAST_ADDRESS and self._values.objects.kind_of(value).name != "NoneType":
                return int(value)
        return 0

    def _traceback(self, address: int) -> Iterator[tuple[str, str, int]]:
        entry = self._memory.word(address + _TRACEBACK)
        for _ in range(_MOST_WALKED):
            if entry < LEAST_ADDRESS:
                return
            following, frame = struct.unpack("<QQ", self._memory.read(entry + _NEXT, 16))
            last = int.from_bytes(self._memory.read(entry + _LAST_INSTRUCTION, 4), "little", signed=True)
            inner = self._memory.word(frame + _OF_FRAME)
            code = self._memory.word(inner + self._layout.frame_code)
            yield self._located(code, code + self._layout.code_adaptive + max(0, last))
            entry = following
