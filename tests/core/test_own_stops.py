"""A stop of ours, for native frames: nobody reads it as the rank's own, and none is made that would last."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.agent.samplers.rank_context import OwnStops, RankContext
from diag.agent.samplers.sampler import Reporter
from diag.agent.stack_sampler import RankStacks
from tests.core.sidecars import beside, needs_pyspy, task_of, wait_for


def test_who_reads_does_not_wait_for_another_reader_and_who_stops_waits_for_all() -> None:
    stops = OwnStops()
    with stops.reading(), stops.reading(), stops.stopping(0.01) as may:
        assert not may
    with stops.stopping(1.0) as may, stops.stopping(0.01) as another:
        assert (may, another) == (True, False)
    with stops.stopping(1.0) as may:
        assert may


def test_who_reads_waits_until_the_stop_is_over() -> None:
    stops, order = OwnStops(), []

    def read() -> None:
        with stops.reading():
            order.append("read")

    with stops.stopping(1.0):
        reader = threading.Thread(target=read)
        reader.start()
        order.append("stopped")
    reader.join(10)
    assert order == ["stopped", "read"]


@needs_pyspy
def test_pause_for_native_frames_is_never_seen_as_a_stop_of_the_rank(rank: subprocess.Popen[bytes]) -> None:
    # given a sidecar that reads the rank's state as often as it can
    with beside(rank, proc_seconds=0.01) as sidecar:
        sidecar.source("proc")
        for number in range(3):
            sidecar.order({"native": f"n{number}", "deadline": 20.0})
            answer = sidecar.until(lambda one, name=f"n{number}": one.get("dumped") == name)
            assert "stdout" in answer["native"], answer

        # then each reading has it asleep or at work
        states = {
            one["payload"]["stat"].rpartition(")")[2].split()[0]
            for one in sidecar.seen
            if one.get("source") == "proc" and "stat" in one["payload"]
        }
    assert states <= {"S", "R"} and states


# The thread that has spawned is in state D until the child has opened the FIFO and runs its program (vfork).
IN_KERNEL = """
import os, sys, threading, time
def spawns():
    os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
print("up", flush=True)
threading.Thread(target=spawns, daemon=True).start()
time.sleep(600)
"""


@pytest.fixture
def in_kernel(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-c", IN_KERNEL, str(fifo)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    yield process, fifo
    process.kill()
    process.wait(10)
    with open(os.open(fifo, os.O_RDWR | os.O_NONBLOCK)):  # the child goes on, and ends
        pass
    process.stdout.close()


def states_of(pid: int) -> set[str]:
    return {
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")
    }


@needs_pyspy
def test_process_with_a_thread_that_cannot_be_stopped_is_not_stopped_at_all(
    in_kernel: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, _ = in_kernel
    wait_for(lambda: "D" in states_of(process.pid), "a thread in the kernel")
    task = task_of(process)
    stacks = RankStacks(RankContext(task, Reporter(lambda record: None, "n", 0)))

    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.update(states_of(process.pid))
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    payload = stacks.native(3.0)
    over.set()
    watcher.join(10)

    assert payload["failed"] == "in_kernel" and "(state D)" in payload["stderr"]
    assert seen <= {"S", "R", "D"}
