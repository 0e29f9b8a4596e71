"""Another process's memory without its files in /proc: those belong to its user, and who may ptrace it need
not be that user.

A container of another user with SYS_PTRACE is such a one: it may read the memory, and may not open
/proc/PID/mem or environ.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any


class _Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_memory(pid: int, address: int, size: int) -> bytes:
    """At most `size` bytes: fewer where the mapping ends. Raises OSError: EPERM where ptrace is denied, ESRCH
    when it is gone, EFAULT where nothing is mapped, ENOSYS on a system without process_vm_readv(2)."""
    buffer = ctypes.create_string_buffer(size)
    here, there = _Part(ctypes.addressof(buffer), size), _Part(address, size)
    got = _process_vm_readv()(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[:got]


@lru_cache(maxsize=1)
def _process_vm_readv() -> Any:
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        raise OSError(38, "Function not implemented") from None
    call.restype = ctypes.c_ssize_t
    call.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    )
    return call
