"""Real cgroups for tests, v1 or v2 as this machine has them, below our own or (v2 forbids that) beside it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["made_cgroup", "memory_cgroup"]

_LIMITS = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "pids": ("pids.max", "pids.max"),
    "cpu": ("cpu.cfs_quota_us", "cpu.max"),
}
_numbers = iter(range(1_000_000))


@contextlib.contextmanager
def made_cgroup(controller: str, parent: Path | None = None) -> Iterator[Path]:
    """A new cgroup, removed afterwards; skips where this machine gives us none."""
    directory = _make(controller, parent)
    try:
        yield directory
    finally:
        end = time.monotonic() + 10.0
        while True:
            try:
                directory.rmdir()
                break
            except OSError:  # EBUSY: a killed process is still on its way out
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)


@contextlib.contextmanager
def memory_cgroup(limit: int, parent: Path | None = None) -> Iterator[Path]:
    """One with a limit of memory and no swap to escape to."""
    with made_cgroup("memory", parent) as directory:
        for swap in ("memory.swap.max", "memory.swappiness"):
            with contextlib.suppress(OSError):
                (directory / swap).write_text("0")
        name = next(name for name in _LIMITS["memory"] if (directory / name).exists())
        (directory / name).write_text(str(limit))
        yield directory


def _make(controller: str, parent: Path | None) -> Path:
    name = f"diag-test-{os.getpid()}-{next(_numbers)}"
    for place in (parent,) if parent is not None else _places(controller):
        directory = place / name
        try:
            directory.mkdir()
        except OSError:
            continue
        if any((directory / limit).exists() for limit in _LIMITS[controller]):
            return directory
        directory.rmdir()
    pytest.skip(f"no cgroup here gives us the {controller} controller")


def _places(controller: str) -> Iterator[Path]:
    membership = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in membership:
        if controller in controllers.split(",") or not controllers:
            top = Path("/sys/fs/cgroup", controller if controllers else "")
            own = top / path.strip("/")
            yield from (place for place in (own, *own.parents) if place.is_relative_to(top))
