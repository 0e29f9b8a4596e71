"""A real sidecar beside a process whose memory rises: the cgroup is read closely when the hub says so, and a
stack is taken."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sidecars import STACKS, beside

GROWS = """
import sys
print("up", flush=True)
kept = []
for line in sys.stdin:
    kept.append(bytearray(int(line)))
    print("has", flush=True)
"""


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", GROWS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.communicate()


def takes(process: subprocess.Popen[bytes], size: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{size}\n".encode())
    process.stdin.flush()
    assert process.stdout.readline() == b"has\n"


def both(sidecar: Any, timeout: float = 20.0) -> None:
    until, kinds = time.monotonic() + timeout, set()
    while len(kinds) < 2:
        left = until - time.monotonic()
        kinds.add(sidecar.until(lambda message: message.get("source") in ("cgroup", STACKS), left)["source"])


def test_memory_that_rises_is_read_long_before_the_next_period_and_with_a_stack(
    rank: subprocess.Popen[bytes],
) -> None:
    with beside(rank, node_seconds=3600.0, stack_seconds=3600.0) as sidecar:
        both(sidecar)  # of the period, in whichever order
        sidecar.order({"memory": True})
        sidecar.source("cgroup")  # the first look
        began = time.monotonic()

        # The cgroup is also that of whoever runs the tests: what they give back then hides a rise, so there
        # are several.
        while True:
            takes(rank, 256 << 20)
            with contextlib.suppress(queue.Empty):
                both(sidecar, 3.0)
                break
        assert time.monotonic() - began < 20


def test_without_the_order_nothing_is_read_between_periods(rank: subprocess.Popen[bytes]) -> None:
    with beside(rank, node_seconds=3600.0, stack_seconds=3600.0, proc_seconds=0.2) as sidecar:
        sidecar.source("cgroup")

        takes(rank, 256 << 20)

        for _ in range(10):  # two seconds of readings of /proc
            sidecar.source("proc")
        assert sum(message.get("source") == "cgroup" for message in sidecar.seen) == 1
