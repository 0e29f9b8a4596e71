"""Real gloo ranks, one of which waits for a lock, a queue or an event loop: these name nobody, and all that the process
and its children wait for does."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PROGRAM = """
import asyncio, multiprocessing, queue, resource, socket, sys, threading, time, torch, torch.distributed as dist

def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (1, 5))

def sign(number):
    while True:
        number += 1

def describe(number):
    time.sleep(0.3)
    return sum(range(200_000))

def read_ahead(ready, port):
    with socket.create_connection(("127.0.0.1", port)) as store:
        ready.put(store.recv(1))

async def collect():
    slots = asyncio.Semaphore(1)
    await slots.acquire()
    await asyncio.gather(slots.acquire(), slots.acquire())

def fault(reason, port):
    if reason == "queue":
        ready = queue.Queue()
        threading.Thread(target=read_ahead, args=(ready, port), name="read_ahead", daemon=True).start()
        ready.get()
    elif reason == "lost":
        with multiprocessing.get_context("fork").Pool(2, limit) as pool:
            pool.map(sign, range(10), 1)
    elif reason == "works":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            sum(pool.imap(describe, range(10_000)))
    elif reason == "loop":
        asyncio.run(collect())
    elif reason == "twice":
        lock = threading.Lock()
        with lock:
            with lock:
                pass

def main():
    dist.init_process_group("gloo")
    for step in range(10_000):
        if step == 40 and dist.get_rank() == 1:
            fault(sys.argv[1], int(sys.argv[2]))
        dist.all_reduce(torch.ones(8))
        time.sleep(0.1)
        if dist.get_rank() == 0:
            print(f" iteration {step + 1:8d}/{10_000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)

if __name__ == "__main__":
    main()
"""
NO_LOCKS = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="from Python 3.13 on memory does not show what is a lock"
)


@pytest.mark.parametrize(
    ("reason", "cause", "shown"),
    [
        ("queue", "connection_not_accepted", "probably for thread read_ahead (tid "),
        ("lost", "children_wait_for_work", "the kernel ends each after 1 s of CPU time (RLIMIT_CPU)"),
        ("works", "helpers_at_work", "its 2 child processes work: pid "),
        ("loop", "tasks_wait_for_permits", "waits for nothing but its own wake-up"),
        pytest.param("twice", "nobody_releases_lock", "waits on a lock or condition", marks=NO_LOCKS),
    ],
)
def test_who_could_end_a_wait_that_names_nobody_is_said(
    tmp_path: Path, reason: str, cause: str, shown: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as store:  # accepts no connection
        words = [str(script), reason, str(store.getsockname()[1])]
        argv = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", *words]
        with live_run(tmp_path, argv) as run:
            # That a worker ended is another true word for it, where /proc was read just before.
            causes = (cause, "worker_ended") if reason == "lost" else (cause,)
            run.until(lambda: (run.hang() or {}).get("finding", {}).get("cause") in causes, 150)
            finding = run.hang()["finding"]

    assert (finding["id"], finding["ranks"], finding["waiting_ranks"]) == ("held-up", [1], [0])
    # what it was for is known where its stack was read while it lived
    assert (shown if finding["cause"] == cause else " of SIGXCPU") in finding["summary"]
