"""The environment that a process has now, with what it has set itself since it began: /proc/PID/environ shows only what it
was started with. Read from its memory, as its stacks are: nothing stops."""

from __future__ import annotations

import struct
from pathlib import Path

from diag.sources.stacks.remote_stack.image import Unsupported, find_environ
from diag.sources.stacks.remote_stack.memory import Gone, Memory, Torn

_MOST, _LONGEST = 4096, 4096  # variables, bytes of one
_SECONDS = 0.2


def live_environ(pid: int, proc: Path = Path("/proc")) -> dict[str, str] | None:
    """None where it may not be read, or is no longer there. Costs 1 to 3 ms."""
    try:
        memory = Memory(pid, proc)
        try:
            memory.begin(_SECONDS)
            return _read(memory, find_environ(pid, proc))
        finally:
            memory.close()
    except (Unsupported, Gone, Torn, OSError, struct.error):
        return None


def _read(memory: Memory, address: int) -> dict[str, str]:
    (table,) = struct.unpack("<Q", memory.some(address, 8))
    found: dict[str, str] = {}
    for number in range(_MOST):
        (at,) = struct.unpack("<Q", memory.some(table + 8 * number, 8))
        if not at:
            break
        name, equals, value = memory.some(at, _LONGEST).partition(b"\0")[0].partition(b"=")
        if equals:
            found.setdefault(name.decode(errors="replace"), value.decode(errors="replace"))
    return found
