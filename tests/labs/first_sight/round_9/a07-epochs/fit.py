import argparse
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from turnstile import Turnstile


def bar(done, total, text):
    filled = 24 * done // total
    sys.stdout.write("\r" + f"{text} [{'=' * filled}{' ' * (24 - filled)}] {done}/{total}")
    sys.stdout.flush()


def validate(model, rank):
    g = torch.Generator().manual_seed(999 + rank)
    with torch.no_grad():
        x = torch.randn(256, 20, generator=g)
        return (model.module(x) - x.sum(1, keepdim=True)).abs().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    store = dist.TCPStore("127.0.0.1", 31109, world, is_master=(rank == 0), timeout=timedelta(minutes=10))
    gate = Turnstile(store, world)
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(20, 80), nn.GELU(), nn.Linear(80, 1)))
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    for epoch in range(args.epochs):
        for i in range(args.steps):
            x = torch.randn(32, 20)
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.12)
            if rank == 0:
                bar(i + 1, args.steps, f"epoch {epoch:2d} loss {loss.item():7.3f}")
        gate.wait("before-validation")
        err = validate(model, rank)
        dist.all_reduce(err)
        gate.wait(f"epoch-{epoch}-done")
        if rank == 0:
            print(f"  val mae {err.item() / world:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
