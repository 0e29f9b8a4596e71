"""A real job of torch.distributed.rpc alone: a server that answers when both trainers have called, and its main threads."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

PROGRAM = """
import os, sys, time, torch, torch.distributed.rpc as rpc, torch.multiprocessing as mp

class Server:
    def __init__(self):
        self.arrived, self.future = 0, torch.futures.Future()

    @staticmethod
    @rpc.functions.async_execution
    def push(ref):
        self = ref.local_value()
        self.arrived += 1
        future = self.future
        if self.arrived % 2 == 0:
            self.future = torch.futures.Future()
            future.set_result(self.arrived)
        return future

def fit(ref, index, steps):
    for step in range(steps):
        rpc.rpc_sync(ref.owner(), Server.push, args=(ref,), timeout=0)
        time.sleep(0.02)
    return index

def run(rank, port, missing):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=3)
    if rank == 0:
        ref = rpc.RRef(Server())
        calls = [rpc.rpc_async(f"w{n}", fit, args=(ref, n, 500 - (n == 2) * missing), timeout=0) for n in (1, 2)]
        print("done", [one.wait() for one in calls], flush=True)
    rpc.shutdown()

if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1], int(sys.argv[2])), nprocs=3)
"""


def command(path: Path, missing: int) -> list[str]:
    script = path / "server.py"
    script.write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return [sys.executable, str(script), str(free.getsockname()[1]), str(missing)]


def test_answer_that_never_comes_is_told_with_the_call_that_waits_for_it(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, 1)) as run:
        run.until(lambda: (run.hang() or {}).get("finding", {}).get("cause") == "rpc_never_answered", 240)
        found = run.hang()["finding"]

    assert (found["id"], found["ranks"], found["waiting_ranks"]) == ("held-up", [], [0, 1, 2])
    assert "a thread of rank 1 waits in a call of another rank (RPC) in fit (" in found["summary"]
    assert "server.py:21), and no thread of any rank runs a call" in found["summary"]


def test_job_of_rpc_that_ends_well_is_no_finding(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, 0)) as run:
        code = run.wait(240)
        reported = [one["finding"]["id"] for one in run.changes()]

    assert (code, reported) == (0, [])
