"""What the kernel shows of real ranks of gloo: all receive and nobody sends, or a transfer goes on slowly."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from diag.detectors.hang import at_rest
from diag.model import Record
from diag.model.observations.waits import ProcessWaits, WaitsRead
from diag.sources import waits

JOB = """
import sys, time
import torch, torch.distributed as dist
scenario, rank, port = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
dist.barrier()
print("up", flush=True)
if scenario == "nobody sends":
    dist.broadcast(torch.ones(4), src=1 - rank)
while rank == 1:  # a little now and then
    dist.send(torch.ones(4), 0)
    time.sleep(0.1)
while rank == 0:
    dist.recv(torch.ones(4), 1)
"""


@contextlib.contextmanager
def ranks(scenario: str) -> Iterator[list[int]]:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, scenario, str(rank), str(port)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def read(pid: int) -> ProcessWaits:
    (fact,) = waits.parse(Record(waits.SOURCE, waits.WaitReader(pid).sample(0.3), 0, "host", time.time()))
    assert isinstance(fact, WaitsRead)
    return fact.processes[0]


def test_ranks_that_all_receive_are_at_rest_and_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_rest, "_SILENT_SECONDS", 1.0)
    with ranks("nobody sends") as pids:
        end = time.monotonic() + 30
        while not at_rest._are_silent(processes := [read(pid) for pid in pids]):
            assert time.monotonic() < end, processes

        resting = [thread.cpu_ratio for process in processes for thread in process.threads]
        assert all(ratio is not None and ratio <= at_rest._REST_CPU_RATIO for ratio in resting), processes
        assert [process.threads[0].wait.kind for process in processes] == ["condition", "condition"]


def test_ranks_between_which_something_moves_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_rest, "_SILENT_SECONDS", 1.0)
    with ranks("a slow transfer") as pids:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert not at_rest._are_silent([read(pid) for pid in pids])
