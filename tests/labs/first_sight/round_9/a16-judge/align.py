import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from judge import Judge


def win_rate(model, reference, pairs=48):
    judge = Judge()
    g = torch.Generator().manual_seed(8)
    wins = 0
    with torch.no_grad():
        for _ in range(pairs):
            x = torch.randn(64, 32, generator=g)
            mine = (model(x) - x.flip(1)).pow(2).mean().item()
            theirs = (reference(x) - x.flip(1)).pow(2).mean().item()
            wins += judge.better(mine, theirs)
    judge.close()
    return wins / pairs


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    reference = nn.Linear(32, 32)
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 32)))
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    for step in range(1, 181):
        x = torch.randn(32, 32)
        loss = (model(x) - x.flip(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.12)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}/180 loss {loss.item():.4f}", flush=True)
        if step == 120:
            if rank == 0:
                print(f"win rate after {step} steps: {win_rate(model.module, reference):.2f}", flush=True)
            dist.barrier()
    dist.barrier()
    if rank == 0:
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
