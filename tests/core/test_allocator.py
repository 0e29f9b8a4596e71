"""How many heaps the C library gives the threads of one process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# A thread's heap begins at a multiple of 64 MiB.
_THREADS = """
import re, sys, threading
from diag.launch.malloc import use_few_heaps
if sys.argv[1] == "few": use_few_heaps()
all_there = threading.Barrier(9)
def work():
    kept = [bytearray(2000) for _ in range(200)]
    all_there.wait(); all_there.wait()
for _ in range(8): threading.Thread(target=work).start()
all_there.wait()
found = re.findall(r"^([0-9a-f]+)-[0-9a-f]+ rw-p 00000000 00:00 0 *$", open("/proc/self/maps").read(), re.M)
starts = [int(each, 16) for each in found]
print(sum(start % (64 << 20) == 0 for start in starts))
all_there.wait()
"""


def _heaps(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _THREADS, how], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_threads_of_a_hub_share_two_heaps() -> None:
    assert _heaps("few") <= 2 < _heaps("as it is")
