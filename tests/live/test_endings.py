"""Real gloo ranks with waits that never end for a reason inside one process: what its tasks, threads, children and files
show of it, and what is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PROGRAM = """
import asyncio, multiprocessing, os, queue, sys, threading, time, torch, torch.distributed as dist

class Client:
    def __init__(self):
        self.slots = asyncio.Semaphore(2)

    async def ask(self, number):
        await self.slots.acquire()
        if number > 2:
            self.slots.release()

    async def all(self):
        await asyncio.gather(*(self.ask(number) for number in range(6)))

class Reader:
    def __init__(self):
        self.rows, self.error = queue.Queue(), None
        threading.Thread(target=self.run, name="prefetch", daemon=True).start()

    def run(self):
        time.sleep(12)
        try:
            int("row 805")
        except ValueError as error:
            self.error = error

    def next(self):
        return self.rows.get()

class Lock:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        while True:
            try:
                return os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                time.sleep(0.5)

    def __exit__(self, *error):
        os.unlink(self.path)

class Shard:
    def __init__(self, group):
        self.group = group

    def __del__(self):
        dist.barrier(group=self.group)

def play(episodes):
    while True:
        episodes.put(b"x" * 200_000)

def fault(reason, rank, step, kept):
    if reason == "permits" and rank == 1:
        asyncio.run(Client().all())
    elif reason == "kept" and rank == 1:
        Reader().next()
    elif reason == "file" and rank == 1:
        with Lock(os.path.join(os.path.dirname(__file__), "index.lock")):
            pass
    elif reason == "joined" and rank == 1:
        context = multiprocessing.get_context("spawn")
        episodes = context.Queue(2)
        actor = context.Process(target=play, args=(episodes,), daemon=True)
        actor.start()
        episodes.get()
        time.sleep(3)
        actor.join()
    elif reason == "destructor":
        shard = Shard(kept["group"])
        if rank == 0:
            kept["recent"] = shard
    elif reason == "threads":
        def save():
            time.sleep(0 if rank else 0.35)
            dist.barrier()
        threading.Thread(target=save, name="saver", daemon=True).start()

def main():
    dist.init_process_group("gloo")
    kept = {"group": dist.new_group()}
    for step in range(10_000):
        if step == 40:
            fault(sys.argv[1], dist.get_rank(), step, kept)
        dist.all_reduce(torch.ones(8))
        time.sleep(0.1)
        if dist.get_rank() == 0:
            print(f" iteration {step + 1:8d}/{10_000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("reason", "cause", "ranks", "shown"),
    [
        (
            "permits",
            "tasks_wait_for_permits",
            [1],
            ("of its 5 tasks 4 wait in Semaphore.acquire, in Client.ask (",),
        ),
        (
            "kept",
            "exception_is_kept",
            [1],
            (
                "its thread prefetch ended",
                "`self.error` keeps the exception ValueError: invalid literal for int()",
            ),
        ),
        ("file", "lock_file_left_behind", [1], ("index.lock (", "there is no such process any more")),
        (
            "joined",
            "joined_before_drained",
            [1],
            ("for room in a full queue, and its thread QueueFeederThread",),
        ),
        ("destructor", "call_in_destructor", [0], ("makes, which no line calls",)),
        (
            "threads",
            "two_threads_use_one_group",
            [],
            ("thread saver in barrier", "main thread in all_reduce"),
        ),
    ],
)
def test_why_a_wait_never_ends_is_said(
    tmp_path: Path, reason: str, cause: str, ranks: list[int], shown: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "index.lock").write_text(f"{ended.pid}\n")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script), reason]
    with live_run(tmp_path, argv) as run:
        run.until(lambda: (run.hang() or {}).get("finding", {}).get("cause") == cause, 150)
        finding = run.hang()["finding"]

    assert finding["ranks"] == ranks
    assert all(words in finding["summary"] for words in shown), finding["summary"]
