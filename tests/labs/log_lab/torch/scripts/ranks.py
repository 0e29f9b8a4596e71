"""A small training loop on gloo; the argument says what goes wrong in it."""

import ctypes
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def step(number: int) -> None:
    loss = torch.tensor([1.0 / (number + 1)])
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"step {number} loss {loss.item() / dist.get_world_size():.4f}", flush=True)


def evaluate(lengths: dict[str, int]) -> int:
    return lengths["validation"]


class Model(torch.nn.Module):
    def __init__(self, rank: int, case: str) -> None:
        super().__init__()
        width = 4 + rank if case == "ddp-shapes" else 4
        self.used = torch.nn.Linear(8, width, bias=rank == 0 or case != "ddp-count")
        self.unused = torch.nn.Linear(8, 4) if case == "ddp-unused" else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


def train_ddp(rank: int, case: str) -> None:
    model = DistributedDataParallel(Model(rank, case))
    for number in range(3):
        model(torch.ones(2, 8)).sum().backward()
        print(f"step {number}", flush=True)


def main() -> None:
    case = sys.argv[1]
    seconds = float(os.environ.get("PG_TIMEOUT", "60"))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    rank, world = dist.get_rank(), dist.get_world_size()
    last = world - 1
    for number in range(3):
        step(number)
    if case.startswith("ddp-"):
        train_ddp(rank, case)
    if rank == last:
        last_rank(case)
    elif case in {"shapes", "collectives"}:
        dist.all_reduce(torch.zeros(16))
    elif case == "dtypes":
        dist.all_reduce(torch.zeros(16, dtype=torch.float32))
    elif case == "monitored":
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))
    elif case == "objects":
        gathered: list[object] = [None] * world
        dist.all_gather_object(gathered, {"rank": rank})
    for number in range(3, 6):
        step(number)
    dist.destroy_process_group()


def last_rank(case: str) -> None:
    if case == "shapes":
        dist.all_reduce(torch.zeros(64))
    elif case == "collectives":
        dist.broadcast(torch.zeros(16), src=0)
    elif case == "dtypes":
        dist.all_reduce(torch.zeros(16, dtype=torch.float64))
    elif case == "key":
        evaluate({"train": 100})
    elif case in {"late", "monitored"}:
        time.sleep(14)
    elif case == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case == "segv":
        ctypes.string_at(0)
    elif case == "abort":
        os.abort()
    elif case == "fpe":
        os.kill(os.getpid(), signal.SIGFPE)
    elif case == "leave":
        sys.exit(0)
    elif case == "exit":
        print("too few samples for one step, giving up", flush=True)
        sys.exit(3)
    elif case == "objects":
        gathered: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, {"rank": dist.get_rank(), "model": lambda: 0})
    elif case == "assert":
        assert torch.ones(3).sum().item() == 4, "sum of the mask must be the number of tokens"
    elif case == "matmul":
        torch.ones(2, 8) @ torch.ones(4, 2)
    elif case == "memory":
        torch.empty(1 << 44, dtype=torch.float32)
    elif case == "grow":
        kept = [torch.ones(1 << 24) for _ in range(200)]
        print(len(kept))
    elif case == "list-memory":
        _ = bytearray(1 << 46)


if __name__ == "__main__":
    main()
