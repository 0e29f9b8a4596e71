"""What is done outside of a job around its save, by the name that a scenario gives it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.vm.memory.guest import cgroups
from tests.vm.memory.scenarios import FOR_ALL, MIB

_VM = Path("/proc/sys/vm")
_HUGE_PAGE = 2 * MIB
_LEFT = 400 * MIB
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def changed(how: str) -> Iterator[None]:
    """From before the job starts until after it has ended."""
    if how not in FOR_ALL:
        yield
        return
    if how == "strict":  # so generous that everything starts
        (_VM / "overcommit_kbytes").write_text(str(8 << 20))
        (_VM / "overcommit_memory").write_text("2")
    try:
        yield
    finally:
        (_VM / "overcommit_memory").write_text("0")
        (_VM / "nr_hugepages").write_text("0")


def act(how: str) -> None:
    """During the save."""
    if how == "strict":  # a fork needs as much again as the process has
        (_VM / "overcommit_kbytes").write_text(str(_meminfo("Committed_AS") // 1024 + 16 * 1024))
    elif how == "scarce":  # huge pages that nobody uses are memory that nobody else gets
        (_VM / "nr_hugepages").write_text(str((_meminfo("MemAvailable") - _LEFT) // _HUGE_PAGE))
    elif how == "neighbour":
        neighbour()


def neighbour() -> None:
    """The kernel kills somebody who has nothing to do with the job."""
    with _one_at_a_time:
        folder = cgroups.ROOT / "neighbour"
        folder.mkdir(exist_ok=True)
        (folder / "memory.max").write_text(str(24 * MIB))
        words = [*cgroups.inside(folder), sys.executable, "-c", "x = [b'x' * 1048576 for _ in range(4096)]"]
        ended = subprocess.run(words, check=False).returncode
        if ended != -9:
            raise RuntimeError(f"the neighbour ended with {ended}")


def _meminfo(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
