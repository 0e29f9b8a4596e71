"""A training loop on real NCCL: `torchrun --nproc_per_node 2 -m tests.labs.bench.gpu_loop`, for machines with
GPUs.

Each step takes a batch from a DataLoader, multiplies matrices for about 50 ms and all-reduces four gradients,
as a small data parallel job does. A fault named on the command line strikes one rank at one step; steps are
noted in $BENCH_FOLDER.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from .target import Recorder

__all__ = ["FAULTS", "command"]

FAULTS = (
    "data-hang",
    "skip-collective",
    "lock-deadlock",
    "rank-killed",
    "gil-held",
    "slow",
    "cuda-oom",
    "cuda-leak",
    "device-assert",
    "pinned-memory",
)


def command(ranks: int, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(ranks),
        "-m",
        "tests.labs.bench.gpu_loop",
        *arguments,
    ]


class Records:
    """A dataset whose reader blocks on a pipe that nobody writes to, from one record on."""

    def __init__(self, blocked_from: int | None) -> None:
        self.blocked_from = blocked_from
        self.fifo = Path(tempfile.gettempdir()) / f"records-{os.getpid()}"

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> int:
        if self.blocked_from is not None and index >= self.blocked_from:
            self.read_shard()
        return index

    def read_shard(self) -> None:
        if not self.fifo.exists():
            os.mkfifo(self.fifo)
        self.fifo.read_bytes()


def train_step(torch: Any, matrix: Any, rounds: int, gradients: list[Any]) -> None:
    out = matrix
    for _ in range(rounds):
        out = out @ matrix
    out.sum().item()
    for gradient in gradients:
        torch.distributed.all_reduce(gradient)
    torch.cuda.synchronize()


def rounds_of(torch: Any, matrix: Any, seconds: float) -> int:
    """Products that take about so long here; the same on all ranks."""
    train_step(torch, matrix, 10, [])
    began = time.perf_counter()
    train_step(torch, matrix, 100, [])
    rounds = torch.tensor([max(1, int(100 * seconds / (time.perf_counter() - began)))], device="cuda")
    torch.distributed.broadcast(rounds, 0)
    return int(rounds.item())


def wait_for_leader() -> None:
    """As people write it: a branch that one rank takes, and a file that nobody makes."""
    while not Path(tempfile.gettempdir(), f"leader-of-{os.getpid()}").exists():
        time.sleep(1.0)


def write_report() -> None:
    time.sleep(0.15)


def deadlock() -> None:
    """Two threads take two locks in opposite order."""
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other_way() -> None:
        with second:
            both.wait()
            with first:
                pass

    threading.Thread(target=other_way, daemon=True, name="logger").start()
    with first:
        both.wait()
        with second:
            pass


def fill_gpu(torch: Any, seconds: float) -> None:
    """Activations of a batch that is too long; with seconds between them a leak."""
    held = []
    while True:
        held.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))
        time.sleep(seconds)


def look_up(torch: Any) -> None:
    """A token that the embedding does not have."""
    torch.nn.functional.embedding(torch.tensor([100], device="cuda"), torch.zeros(10, 4, device="cuda"))
    torch.cuda.synchronize()


def strike(fault: str) -> None:
    print(
        f"[diag.fault] rank {os.environ['RANK']}: {fault} at step (pid {os.getpid()}) at={time.time():.3f}",
        flush=True,
    )
    if fault == "skip-collective":
        wait_for_leader()
    elif fault == "lock-deadlock":
        deadlock()
    elif fault == "rank-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault in ("cuda-oom", "cuda-leak"):
        import torch

        fill_gpu(torch, 1.0 if fault == "cuda-leak" else 0.0)
    elif fault == "device-assert":
        import torch

        look_up(torch)
    elif fault == "pinned-memory":
        import torch

        torch.empty(1 << 50, dtype=torch.uint8, pin_memory=True)
    elif fault == "gil-held":
        ctypes.PyDLL(None).sleep(100_000)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.bench.gpu_loop", description=__doc__)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--rank", type=int, default=1, help="of the fault")
    parser.add_argument("--step", type=int, default=40, help="of the fault")
    parser.add_argument("--iters", type=int, default=10_000_000)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    options = parser.parse_args()
    import torch
    from torch.utils.data import DataLoader

    rank = int(os.environ["RANK"])
    mine = options.fault if rank == options.rank else None
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    matrix = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
    gradients = [torch.ones(1 << 20, device="cuda") for _ in range(4)]
    rounds = rounds_of(torch, matrix, options.step_seconds)
    records = Records(options.step + 4 if mine == "data-hang" else None)
    batches = iter(DataLoader(records, batch_size=1, num_workers=2, prefetch_factor=2))  # type: ignore[arg-type]
    folder = os.environ.get("BENCH_FOLDER")
    recorder = Recorder(Path(folder), rank) if folder else None
    if rank == 0:
        print("[INFO:swift] The training of Epoch 0 starts...", flush=True)
    said = 0.0
    for number in range(1, options.iters + 1):
        if recorder is not None:
            recorder.lap()
        next(batches)
        if mine is not None and number == options.step:
            strike(mine)
        if mine == "slow" and number > options.step:
            write_report()
        train_step(torch, matrix, rounds, gradients)
        if rank == 0 and time.monotonic() - said >= 1.0:
            said = time.monotonic()
            print(
                f" iteration {number:8d}/{options.iters:8d} | loss: {1 / number:.4f} | grad norm: 2.0 |",
                flush=True,
            )
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
