"""Two ranks that sleep between what they print, and their launcher. `python job.py KIND SECONDS`, under `diag run`.

What moves: lines (a step each), bar (drawn again with \\r), files (a file for each rank), download (rank 0 alone, rank 1 waits in a
barrier). What stands: silent (after some lines), same (one line with a clock in it), heartbeat (of the launcher alone), chatter (of
a thread of rank 0, whose main thread waits in a barrier for rank 1), and redrawn (a bar that stays where it is).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time


def launch(kind: str, seconds: str) -> int:
    ranks = []
    for rank in range(2):
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"} if kind in ("download", "chatter") else {}
        out = tempfile.NamedTemporaryFile("w", prefix=f"rank{rank}-", delete=False) if kind == "files" else None  # noqa: SIM115
        ranks.append(subprocess.Popen(
            [sys.executable, __file__, kind, seconds], stdout=out,
            env={**os.environ, **address, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
        ))
    beat = 0
    while kind == "heartbeat" and any(rank.poll() is None for rank in ranks):
        time.sleep(1)
        print("launcher: the job is there, beat", beat := beat + 1, flush=True)
    return max(rank.wait() for rank in ranks)


def barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def chat() -> None:
    for number in range(1_000_000):
        print("monitor: reading", number, flush=True)
        time.sleep(1)


def work(kind: str, rank: str, seconds: float) -> None:
    if kind in ("download", "chatter"):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if kind == "chatter" and rank == "0":
            threading.Thread(target=chat, daemon=True).start()
        if (kind, rank) in (("download", "1"), ("chatter", "0")):
            return barrier()
    until, step = time.time() + seconds, 0
    while time.time() < until:
        step += 1
        if kind in ("lines", "files") or (kind == "silent" and step < 20):
            print(f"rank {rank} step {step}", flush=True)
        elif kind in ("bar", "download"):
            print(f"\rDownloading shards: {step % 101}%|{'#' * (step % 101 // 5)}", end="", flush=True)
        elif kind == "redrawn":
            print(f"\rTrain:  37%|###7      | 37/100 [00:{step % 60:02}<01:00,  1.05it/s]", end="", flush=True)
        elif kind == "same":
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} rank {rank}: waiting for the server, {step * 0.5:.1f} s", flush=True)
        time.sleep(0.5)
    if kind == "download":
        barrier()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(launch(*sys.argv[1:]))
    work(sys.argv[1], os.environ["RANK"], float(sys.argv[2]))
