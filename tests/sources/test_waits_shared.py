"""Semaphores in memory that real processes share: who else has that memory, and where in it each waits."""

from __future__ import annotations

import pytest

from tests.blocked import Start, until

RING = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
mem = mmap.mmap(-1, 4096)
base = ctypes.addressof(ctypes.c_char.from_buffer(mem))
free, filled = ctypes.c_void_p(base), ctypes.c_void_p(base + 32)
libc.sem_init(free, 1, 0); libc.sem_init(filled, 1, 0)
"""
WAITS = "child = os.fork()\nif not child: libc.sem_wait(free)\nready(); libc.sem_wait(filled)"


def test_both_ends_of_a_ring_are_seen_to_wait_in_one_memory(start: Start) -> None:
    pid = start(RING + WAITS)
    read, thread = until(
        pid,
        "semaphore",
        when=lambda read, thread: (
            thread.wait.shared is not None
            and all(one.threads[0].wait.shared is not None for one in read.processes)
        ),
    )
    (child,) = [one for one in read.processes if one.pid != pid]
    own, other = thread.wait.shared, child.threads[0].wait.shared

    assert own is not None and other is not None and own.whole
    assert own.memory == other.memory and other.offset + 32 == own.offset
    assert [one.pid for one in own.by] == [child.pid] and [one.pid for one in other.by] == [pid]


@pytest.mark.parametrize(
    "code",
    [
        RING + "ready(); libc.sem_wait(filled)",  # nobody else has it
        RING + "if not os.fork(): os.execvp('sleep', ['sleep', '900'])\nready(); libc.sem_wait(filled)",
    ],
)
def test_memory_that_nobody_else_has_is_shared_with_nobody(start: Start, code: str) -> None:
    _, thread = until(
        start(code),
        "semaphore",
        when=lambda read, thread: (
            "python" not in str([one.command for one in read.processes if one.pid != read.pid])
        ),
    )

    assert thread.wait.shared is None


def test_lock_of_multiprocessing_is_shared_with_the_child_that_has_it(start: Start) -> None:
    code = (
        "import multiprocessing as m, os, time\nk = m.get_context('fork').Lock(); k.acquire()\n"
        "if not os.fork(): time.sleep(900)\nready(); k.acquire()"
    )
    read, thread = until(
        pid := start(code), "semaphore", when=lambda read, thread: thread.wait.shared is not None
    )

    assert thread.wait.shared is not None
    assert {one.pid for one in thread.wait.shared.by} == {one.pid for one in read.processes} - {pid}
