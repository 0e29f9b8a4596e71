"""Who holds a lock, by what the C library and the interpreter keep beside its futex word (x86-64 and arm64, glibc
2.36, CPython 3.11 to 3.13). A guess that does not fit is no answer: every number must make sense."""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from typing import Any

from diag.sources.stacks.remote_stack.memory import Gone, Memory, Torn

_TID_MASK = 0x3FFFFFFF  # FUTEX_TID_MASK
# struct _gil_runtime_state: {interval, last_holder, locked, switch_number, cond, ...}: the condition's futex word lies
# 40 or 44 bytes behind its start (glibc: g_signals of either group).
_GIL_BACK = (72, 76)
_NATIVE_ID = (160, 144)  # of PyThreadState: 3.11 and 3.13, 3.12
_LONGEST_INTERVAL_US = 10_000_000
# Of struct pthread: its header, {x86-64: tcbhead_t, seen with glibc 2.36; else 24 words: nptl/descr.h}, and a list.
_PTHREAD_TID = {"x86_64": 0x2D0, "aarch64": 0xD0}
MALLOC_HEAD = 8  # the size of a piece is stored before it, its lowest three bits are flags
# 32 of sem_t and the size; 16 more where they were cut from a piece whose rest would have been less than the smallest.
_SEM_PIECES = (48, 64)
_PIECE = 256 << 10
_SCANNED = 48 << 20  # of a process's own writable memory, for the owner of one RLock


def mutex_words(raw: bytes) -> dict[str, Any]:
    """pthread_mutex_t: {lock, count, owner, nusers, kind}. The owner is a thread as the process's namespace counts.

    >>> mutex_words(struct.pack("=IIIII", 2, 0, 4711, 1, 0))
    {'owner': 4711}
    """
    lock, _, owner = struct.unpack_from("=III", raw)
    named = owner or (lock & _TID_MASK if lock > 2 else 0)
    return {"owner": named} if 0 < named < 1 << 22 else {}


def is_python_lock(raw: bytes) -> bool:
    """Whether a semaphore that is waited for lies in a piece of memory of its own, as Python's locks do up to 3.13
    (PyThread_allocate_lock). A condition of C lies amid something larger. `raw`: from what malloc keeps before it.

    sem_t of glibc 2.36: {value, waiters, private}; private is 0 where one process alone uses it.

    >>> [is_python_lock(struct.pack("=QIII", piece, 0, 1, 0)) for piece in (0x31, 0x41, 0x51, 1)]
    [True, True, False, False]
    """
    if len(raw) < 20:
        return False
    piece, value, waiters, private = struct.unpack_from("=QIII", raw)
    return bool(piece & ~7 in _SEM_PIECES and value == 0 and 0 < waiters < 1 << 16 and private == 0)


def find_gil_holder(memory: Memory, address: int) -> int:
    """The thread that holds the interpreter's lock, which the futex at `address` belongs to; 0 where that is none."""
    for back in _GIL_BACK:
        try:
            interval, holder, locked = struct.unpack("=QQi", memory.read(address - back, 20))
            if locked != 1 or not 0 < interval <= _LONGEST_INTERVAL_US or holder < 4096:
                continue
            for offset in _NATIVE_ID:
                tid = memory.word(holder + offset)
                if 0 < tid < 1 << 22:
                    return tid
        except (Torn, Gone, TimeoutError, struct.error):
            continue
    return 0


def find_rlock_owner(memory: Memory, address: int, maps: list[str]) -> int:
    """The thread that owns the threading.RLock whose lock waits at `address`: beside the pointer to it are the
    owner's pthread_t and a count. 0 where no such is found."""
    wanted = struct.pack("=Q", address)
    for start, data in _pieces(memory, _own_memory(maps)):
        at = data.find(wanted)
        while at >= 0:
            if (start + at) % 8 == 0 and at + 24 <= len(data):
                owner, count = struct.unpack_from("=QQ", data, at + 8)
                if (
                    0 < count < 1 << 20
                    and owner > 4096
                    and owner % 64 == 0
                    and (tid := _thread_id(memory, owner))
                ):
                    return tid
            at = data.find(wanted, at + 1)
    return 0


def _pieces(memory: Memory, mappings: list[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """These mappings piece by piece, each with the words that follow it: no more of them is held at once."""
    left = _SCANNED
    for low, high in mappings:
        memory.begin(1.0)
        for start in range(low, high, _PIECE):
            if (left := left - _PIECE) < 0:
                return
            try:
                yield start, memory.some(start, min(_PIECE + 16, high - start))
            except (Torn, Gone, TimeoutError):
                break


def _thread_id(memory: Memory, pthread: int) -> int:
    at = _PTHREAD_TID.get(platform.machine())
    if at is None:
        return 0
    try:
        tid = struct.unpack("=i", memory.read(pthread + at, 4))[0]
    except (Torn, Gone, TimeoutError):
        return 0
    return tid if 0 < tid < 1 << 22 else 0


def _own_memory(maps: list[str]) -> list[tuple[int, int]]:
    """The heap first, then anonymous mappings that are not a stack or a huge reservation."""
    found = []
    for line in maps:
        fields = line.split(maxsplit=5)
        if not fields[1].startswith("rw") or (len(fields) > 5 and fields[5] != "[heap]"):
            continue
        low, _, high = fields[0].partition("-")
        found.append((len(fields) < 6, int(low, 16), int(high, 16)))
    return [(low, high) for _, low, high in sorted(found)]
