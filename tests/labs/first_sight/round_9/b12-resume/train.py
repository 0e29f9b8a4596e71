import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from state import State


def net():
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
                         nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folder")
    ap.add_argument("--until", type=int, required=True)
    ap.add_argument("--every", type=int, default=20)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    io = dist.new_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    source = torch.Generator().manual_seed(rank)
    state = State(a.folder, rank)
    first = state.load(model, opt, source)
    ddp = DDP(model)
    print(f"rank {rank}: {'resuming' if first else 'fresh'}, until step {a.until}", flush=True)
    running = 0.0
    for step in range(first + 1, a.until + 1):
        x = torch.rand(32, 3, 32, 32, generator=source)
        y = (x.mean((1, 2, 3)) * 1000).long() % 10
        loss = nn.functional.cross_entropy(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running = loss.item() if running == 0 else 0.95 * running + 0.05 * loss.item()
        if step % a.every == 0:
            state.save(step, model, opt, source)
            if rank == 0:
                print(f"step {step} loss {running:.4f} saved", flush=True)
    if rank == 0:
        state.save(a.until, model, opt, source)
    results = [None] * world if rank == 0 else None
    dist.gather_object(running, results, dst=0, group=io)
    if rank == 0:
        print("losses", [round(r, 4) for r in results], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
