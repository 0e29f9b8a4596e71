import contextlib
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stats import RunStats

ACCUM = 4
UPDATES = 3000


def next_batch(gen):
    time.sleep(0.002)
    x = torch.randn(64, 128, generator=gen)
    return x, x[:, :8].sum(1, keepdim=True).sin()


def update(model, opt, gen, stats):
    guard = stats.lock if stats else contextlib.nullcontext()
    # the writer must never see half an update
    with guard:
        for k in range(ACCUM):
            x, y = next_batch(gen)
            sync = contextlib.nullcontext() if k == ACCUM - 1 else model.no_sync()
            with sync:
                loss = nn.functional.mse_loss(model(x), y)
                (loss / ACCUM).backward()
            if stats:
                stats.add(len(x), loss.item() * len(x))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if stats:
            stats.steps += 1


def worker(rank, world, init):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    stats = RunStats("stats.jsonl", every=20.0) if rank == 0 else None
    gen = torch.Generator().manual_seed(rank)
    for _ in range(UPDATES):
        update(model, opt, gen, stats)
    if stats:
        stats.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    world = int(os.environ.get("NPROC", 3))
    with tempfile.TemporaryDirectory() as d:
        mp.spawn(worker, args=(world, f"file://{d}/rdv"), nprocs=world)
