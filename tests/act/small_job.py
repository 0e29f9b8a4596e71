"""A trainer of two ranks on gloo that goes on from its checkpoint, and hangs at a step for a reason that cannot pass.

`python small_job.py STEPS HANG_AT [--always] [--stubborn] [--output_dir DIR] [--resume_from_checkpoint PATH]`
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(1e6)"


def stubborn() -> None:
    """Children that a signal to the command, or to its group, does not end."""
    for own_session in (False, True):
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", DEAF], stdout=subprocess.PIPE, start_new_session=own_session
        )
        assert child.stdout is not None and child.stdout.readline()
    if os.fork() == 0:  # a daemon: its parent ends at once
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1e6)
        os._exit(0)


def launch(options: argparse.Namespace) -> int:
    if options.stubborn:
        stubborn()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **given, "RANK": rank, "LOCAL_RANK": rank}
        )
        for rank in "01"
    ]
    return max(rank.wait() for rank in ranks)


def train(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    step, first = 0, dist.get_rank() == 0
    if options.resume_from_checkpoint:
        state = (options.resume_from_checkpoint / "trainer_state.json").read_text()
        step = json.loads(state)["global_step"]
    if first:
        print(f"attempt {os.environ['DIAG_ATTEMPT']} begins behind step {step}", flush=True)
    while step < options.steps:
        again = options.always or os.environ["DIAG_ATTEMPT"] == "1"
        if step + 1 == options.hang_at and again and not first:
            fifo = options.output_dir / "shard.fifo"
            if not fifo.exists():
                os.mkfifo(fifo)
            fifo.read_bytes()
        dist.all_reduce(torch.ones(1))
        time.sleep(0.2)
        step += 1
        if first:
            print({"loss": round(1 / step, 4), "iteration": f"{step}/{options.steps}"}, flush=True)
            if step % 2 == 0:
                save(options.output_dir / f"checkpoint-{step}", step)
    dist.destroy_process_group()


def save(folder: Path, step: int) -> None:
    """As transformers' Trainer lays it out, whole."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [1000], "data_offsets": [0, 1000]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"w" * 1000)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        torch.save({"step": step}, folder / name)
    (folder / "config.json").write_text("{}")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("hang_at", type=int)
    parser.add_argument("--always", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--output_dir", type=Path)
    parser.add_argument("--resume_from_checkpoint", type=Path)
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    if "RANK" not in os.environ:
        return launch(options)
    train(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
