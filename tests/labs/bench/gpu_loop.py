"""A training loop on real NCCL: `torchrun --nproc_per_node 2 -m tests.labs.bench.gpu_loop`; on gloo where there
is no GPU.

Each step takes a batch from a DataLoader, multiplies matrices for about 50 ms and all-reduces four gradients,
as a small data parallel job does. How it ends, and what it prints, are as people write it: with a
synchronisation, with the loss as a number, with a thread that waits for its stream. A fault named on the command
line strikes one rank at one step; steps are noted in $BENCH_FOLDER.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from .loop_faults import FAULTS, busy_in_c, strike, strikes_all
from .target import Recorder

__all__ = ["ENDS", "FAULTS", "command"]

ENDS = ("synchronize", "item", "thread")
_ELEMENTS = {"cuda": 1 << 20, "cpu": 1 << 10}  # of a gradient
_MATRIX = {"cuda": 4096, "cpu": 128}


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


def train_step(torch: Any, matrix: Any, rounds: int, gradients: list[Any], end: str = "synchronize") -> None:
    out = matrix
    for _ in range(rounds):
        out = out @ matrix
    if end == "synchronize":
        out.sum().item()
    works = [torch.distributed.all_reduce(gradient, async_op=end != "synchronize") for gradient in gradients]
    if end == "thread":
        # made in each step, as an offload of activations to the host is
        flush = threading.Thread(target=wait_for_stream, args=(torch, works), name="offload-flush")
        flush.start()
        flush.join()
    elif end == "item":
        loss_of(gradients, works)
    elif torch.cuda.is_available():
        torch.cuda.synchronize()


def wait_for_stream(torch: Any, works: list[Any]) -> None:
    for work in works:
        work.wait()
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def loss_of(gradients: list[Any], works: list[Any]) -> float:
    """CUDA spins in `.item()` until the collectives are through. gloo would wait in its own call, without CPU:
    there the spinning is done by hand."""
    while not gradients[0].is_cuda and not all(work.is_completed() for work in works):
        busy_in_c()
    for work in works:
        work.wait()
    return float(gradients[0].mean().item())


def rounds_of(torch: Any, matrix: Any, seconds: float) -> int:
    """Products that take about so long here; the same on all ranks."""
    train_step(torch, matrix, 10, [])
    began = time.perf_counter()
    train_step(torch, matrix, 100, [])
    rounds = torch.tensor([max(1, int(100 * seconds / (time.perf_counter() - began)))], device=matrix.device)
    torch.distributed.broadcast(rounds, 0)
    return int(rounds.item())


def write_report() -> None:
    time.sleep(0.15)


def choose_device(torch: Any, rank: int, local_rank: int, ranks: int) -> str:
    """Where there are fewer GPUs than ranks they share one: NCCL refuses that within a host, so each rank calls
    itself one."""
    if not torch.cuda.is_available():
        return "cpu"
    if torch.cuda.device_count() < ranks:
        os.environ["NCCL_HOSTID"] = f"host-of-rank-{rank}"
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return "cuda"


def print_step(lines: str, number: int, iters: int, loss: float, seconds: float) -> None:
    if lines == "own":
        print(f"step {number}/{iters} loss: {loss:.4f} ({1000 * seconds:.0f} ms)", flush=True)
    else:
        print(f" iteration {number:8d}/{iters:8d} | loss: {loss:.4f} | grad norm: 2.0 |", flush=True)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m tests.labs.bench.gpu_loop", description=__doc__)
    p.add_argument("--fault", choices=FAULTS)
    p.add_argument("--rank", type=int, default=1, help="of the fault")
    p.add_argument("--step", type=int, default=40, help="of the fault")
    p.add_argument("--iters", type=int, default=10_000_000)
    p.add_argument("--step-seconds", type=float, default=0.05)
    p.add_argument("--ends", choices=ENDS, default="synchronize", help="what a step ends with")
    p.add_argument(
        "--lines", choices=("megatron", "own"), default="megatron", help="what rank 0 prints of its steps"
    )
    p.add_argument("--workers", type=int, default=2, help="of the DataLoader")
    return p


def main() -> int:
    options = parser().parse_args()
    import torch
    from torch.utils.data import DataLoader

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mine = options.fault if rank == options.rank or strikes_all(options.fault) else None
    device = choose_device(torch, rank, int(os.environ["LOCAL_RANK"]), ranks)
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    groups = [torch.distributed.new_group() for _ in range(2)] if options.fault == "opposite-groups" else []
    size = _MATRIX[device]
    matrix = torch.rand(size, size, device=device, dtype=torch.bfloat16 if device == "cuda" else None)
    gradients = [torch.ones(_ELEMENTS[device], device=device) for _ in range(4)]
    rounds = rounds_of(torch, matrix, options.step_seconds)
    records = Records(options.step + 4 if mine == "data-hang" else None)
    ahead = 2 if options.workers else None
    batches = iter(
        DataLoader(records, batch_size=1, num_workers=options.workers, prefetch_factor=ahead)  # type: ignore[arg-type]
    )
    folder = os.environ.get("BENCH_FOLDER")
    recorder = Recorder(Path(folder), rank) if folder else None
    if rank == 0 and options.lines == "megatron":
        print("[INFO:swift] The training of Epoch 0 starts...", flush=True)
    said = 0.0
    for number in range(1, options.iters + 1):
        began = time.perf_counter()
        if recorder is not None:
            recorder.lap()
        next(batches)
        if mine is not None and number == options.step:
            strike(mine, groups, device)
        if mine == "slow" and number > options.step:
            write_report()
        train_step(torch, matrix, rounds, gradients, options.ends)
        if rank == 0 and time.monotonic() - said >= 1.0:
            said = time.monotonic()
            print_step(options.lines, number, options.iters, 1 / number, time.perf_counter() - began)
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
