"""What rank 1 does in its save, by the name that a scenario gives it."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from tests.vm.memory.scenarios import MIB

_DISK = Path("/scratch")
_kept: list[object] = []


def grow() -> None:
    """Until something ends it."""
    while True:
        _kept.append(b"x" * (2 * MIB))  # bytes of zeros would be pages that nobody has touched
        time.sleep(0.02)


def grow_slowly() -> None:
    """A page at a time, as code that fills a buffer: each may be where the kernel holds it up."""
    memory = mmap.mmap(-1, 512 * MIB)
    _kept.append(memory)
    for offset in range(0, len(memory), mmap.PAGESIZE):
        memory[offset] = 1


def grow_in_writer() -> None:
    """The forked writer of a checkpoint is what the kernel takes; its parent says so and fails."""
    writer = multiprocessing.get_context("fork").Process(target=grow)
    writer.start()
    writer.join()
    raise RuntimeError(
        f"Worker failure: checkpoint writer (pid {writer.pid}) ended with exit code {writer.exitcode}"
    )


def ask_for_too_much() -> None:
    _kept.append(bytearray(64 << 30))


def fork_writers() -> None:
    """As many as are allowed."""
    fork = multiprocessing.get_context("fork")
    while True:
        writer = fork.Process(target=_write, daemon=True)
        writer.start()
        _kept.append(writer)


def _write() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not its parent's
    time.sleep(3600)


def fill_shm() -> None:
    shared = SharedMemory(create=True, size=64 * MIB)  # promised: no memory is taken yet
    _kept.append(shared)
    for offset in range(0, shared.size, mmap.PAGESIZE):
        shared.buf[offset] = 1


def write_and_read_file() -> None:
    """Of a checkpoint three times as large as what the cgroup may have."""
    path = _DISK / f"checkpoint-{os.getpid()}"
    with open(path, "wb") as file:
        for _ in range(192):
            file.write(b"x" * MIB)
    with open(path, "rb") as file:
        while file.read(MIB):
            pass
    path.unlink()


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait() -> None:
    """Nothing: something happens elsewhere."""


_ALL = (
    grow,
    grow_slowly,
    grow_in_writer,
    ask_for_too_much,
    fork_writers,
    fill_shm,
    write_and_read_file,
    kill_itself,
    wait,
)
DEEDS: dict[str, Callable[[], None]] = {deed.__name__: deed for deed in _ALL}
