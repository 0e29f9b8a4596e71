"""The C library's heaps of this process."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h of glibc
_HEAPS = 2


def use_few_heaps() -> None:
    """glibc gives threads heaps of their own, up to eight a core, and each keeps what its threads needed
    most: those of dumps, one after the other, came to 30 MB on two cores, and a node has a hundred. The GIL
    leaves threads little to compete for. It holds for threads that begin later. Another C library is left as
    it is."""
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)
    except (AttributeError, OSError):  # musl has no such word
        pass
