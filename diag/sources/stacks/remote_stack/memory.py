"""Another process's memory by /proc/PID/mem, where that is another user's by process_vm_readv(2): no ptrace
stop.

Everything read is doubtful: the process runs on while we look, and it may be broken. A reading is bounded in
bytes, calls and time.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from pathlib import Path

from diag.sources.host.vm import read_memory

_MOST_BYTES = 64 << 20
_MOST_CALLS = 60_000  # 1.2 us each
_WORD = struct.Struct("<Q")


class Torn(Exception):
    """What was read makes no sense: it changed meanwhile, or is not what it was taken for. Reading again may
    help."""


class Gone(Exception):
    """The address space does not exist any more: the process ended, or runs another program."""


class Memory:
    """Keeps the file open: it stays tied to this address space, so a reused pid is never read as the old
    process. (Without the file the heads of objects decide: they are compared at each reading.)"""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        """Raises OSError: PermissionError where ptrace is denied."""
        self._pid = pid
        try:
            self._fd = os.open(f"{proc}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            self._fd = -1
            if not self._may_read_without_file():
                raise
        self.begin(1.0)

    def _may_read_without_file(self) -> bool:
        """With CAP_SYS_PTRACE alone the memory of another user is open, and its file is not."""
        try:
            read_memory(self._pid, 4096, 1)
        except OSError as error:
            return error.errno == errno.EFAULT  # asked after the permission, and nothing lies there
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def begin(self, seconds: float) -> None:
        """A new reading: all its limits start here."""
        self._bytes, self._calls, self._until = _MOST_BYTES, _MOST_CALLS, time.monotonic() + seconds

    def some(self, address: int, size: int) -> bytes:
        """At most `size` bytes: fewer where the mapping ends. Raises Torn for none."""
        self._bytes -= size
        self._calls -= 1
        if self._bytes < 0 or self._calls < 0:
            raise Torn("more than a process can have")
        if not self._calls & 127 and time.monotonic() > self._until:
            raise TimeoutError("the reading took too long")
        if not 4096 <= address < 1 << 62:
            raise Torn(f"no address: {address:#x}")
        try:
            data = (
                os.pread(self._fd, size, address) if self._fd >= 0 else read_memory(self._pid, address, size)
            )
        except ProcessLookupError:
            raise Gone("the process is gone") from None
        except OSError as error:
            raise Torn(f"{address:#x}: {error.strerror}") from None
        if not data:
            raise Gone("the address space is gone")
        return data

    def read(self, address: int, size: int) -> bytes:
        data = self.some(address, size)
        if len(data) != size:
            raise Torn(f"{address:#x}: cut off")
        return data

    def word(self, address: int) -> int:
        return int(_WORD.unpack(self.read(address, 8))[0])
