"""Real gloo ranks under `diag run` that train in a thread, or wait for a thread or worker of their own that is gone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import LiveRun, live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PROGRAM = """
import multiprocessing, os, queue, signal, sys, threading, time, torch, torch.distributed as dist

def square(number):
    time.sleep(12)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number

def upload(items):
    items.get()
    raise ConnectionResetError("the store closed the connection")

def fault(reason):
    if reason == "thread that trains":
        threading.Event().wait()
    elif reason == "pool worker":
        with multiprocessing.Pool(2) as pool:
            pool.map(square, range(2), 1)
    elif reason == "uploader":
        items = queue.Queue(maxsize=1)
        threading.Thread(target=upload, args=(items,), name="uploader", daemon=True).start()
        for item in range(3):
            items.put(item)
            time.sleep(1)

def train(reason, rank):
    for step in range(10_000):
        if step == 60 and rank == 1:
            fault(reason)
        dist.all_reduce(torch.ones(8))
        time.sleep(0.1)
        if rank == 0:
            print(f" iteration {step + 1:8d}/{10_000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)

def main():
    dist.init_process_group("gloo")
    reason, rank = sys.argv[1], dist.get_rank()
    if reason != "thread that trains":
        return train(reason, rank)
    trainer = threading.Thread(target=train, args=(reason, rank), name="trainer", daemon=True)
    trainer.start()
    while trainer.is_alive():
        time.sleep(0.5)

if __name__ == "__main__":
    main()
"""


def command(path: Path, reason: str) -> list[str]:
    script = path / "train.py"
    script.write_text(PROGRAM)
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script), reason]


def opened(run: LiveRun, words: str) -> bool:
    return words in (run.hang() or {}).get("finding", {}).get("summary", "")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("thread that trains", "of its thread trainer"),
        ("uploader", "thread uploader ended with ConnectionResetError: the store closed the connection"),
        ("pool worker", "its pool worker pid"),
    ],
)
def test_thread_or_worker_is_named(tmp_path: Path, reason: str, said: str) -> None:
    with live_run(tmp_path, command(tmp_path, reason)) as run:
        run.until(lambda: opened(run, said), 120)
        hang = run.hang()["finding"]

    assert (hang["ranks"], hang["waiting_ranks"]) == ([1], [0])
