"""Real gloo ranks under `diag run`; one stops in its own code, each time for another reason. Functions of no library
tell which: only the kernel does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PROGRAM = """
import datetime, os, socket, subprocess, sys, threading, time, torch, torch.distributed as dist

def publish(reason):
    if reason == "silent peer, in a thread":
        listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
        connection = socket.create_connection(listener.getsockname())
        uploader = threading.Thread(target=lambda: connection.recv(1), name="uploader")
        uploader.start(); uploader.join()
    elif reason == "child":
        subprocess.run(["sh", "-c", "sleep 900; true"])
    elif reason == "pipe":
        reader, writer = os.pipe()
        os.read(reader, 1)
    elif reason == "marker":
        while not os.path.exists("marker"):
            time.sleep(0.5)
    elif reason == "store":
        store = dist.distributed_c10d._get_default_store()
        store.wait(["never"], datetime.timedelta(hours=1))
    elif reason == "slow download":
        a, b = connected()
        threading.Thread(target=drip, args=(b,), daemon=True).start()
        for _ in range(45):
            a.recv(1)

def connected():
    listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
    a = socket.create_connection(listener.getsockname())
    return a, listener.accept()[0]

def drip(end):
    while True:
        end.send(b"x"); time.sleep(1)

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(10_000):
    if step == 20 and rank == 1:
        publish(sys.argv[1])
        print("published", flush=True)
    if step == 60:
        break
    dist.all_reduce(torch.ones(8))
    time.sleep(0.1)
    if rank == 0:
        print(f" iteration {step + 1:8d}/{10_000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
dist.destroy_process_group()
"""


def command(path: Path, reason: str) -> list[str]:
    script = path / "train.py"
    script.write_text(PROGRAM)
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script), reason]


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="from Python 3.13 on join() has a lock of another form"
)
def test_thread_that_the_rank_joins_is_named_with_what_it_waits_for(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "silent peer, in a thread")) as run:
        run.until(lambda: (run.hang() or {}).get("finding", {}).get("cause") == "thread_does_not_end", 120)
        hang = run.hang()["finding"]

    assert (hang["ranks"], hang["waiting_ranks"]) == ([1], [0])
    assert "its main thread waits for thread uploader" in hang["summary"]
    assert "which waits for data from 127.0.0.1:" in hang["summary"]


@pytest.mark.parametrize(
    ("reason", "cause", "shown"),
    [
        ("child", "child_does_not_end", "which waits for child pid"),
        ("pipe", "pipe_without_other_end", "that no other process can write to"),
        ("marker", "polls_for_file", 'in the loop `while not os.path.exists("marker"):` ('),
    ],
)
def test_cause_is_what_the_kernel_shows(tmp_path: Path, reason: str, cause: str, shown: str) -> None:
    with live_run(tmp_path, command(tmp_path, reason)) as run:
        run.until(lambda: (run.hang() or {}).get("finding", {}).get("cause") == cause, 120)
        hang = run.hang()["finding"]

    assert hang["ranks"] == [1]
    assert shown in hang["summary"]


def test_wait_for_a_key_of_the_jobs_own_store_is_no_silent_service(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "store")) as run:
        run.until(lambda: run.hang() is not None, 120)
        hang = run.hang()["finding"]

    assert (hang["cause"], hang["ranks"]) == ("waits_at_store", [1])
    assert "the job's own store (MASTER_ADDR:MASTER_PORT)" in hang["summary"]


def test_download_of_a_byte_a_second_is_no_hang(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "slow download")) as run:
        run.until(lambda: "published" in run.text, 120)

        assert run.hang() is None
