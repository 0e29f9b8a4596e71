import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def load_table(rank):
    """Feature table of this rank; the last one reads the uncompacted log."""
    rows = []
    for i in range(12):
        rows.append(torch.randn(400, 64))
        time.sleep(2.2 if rank == 3 else 0.05)
    return torch.cat(rows)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"node {os.environ['GROUP_RANK']} rank {rank}/{world} joined", flush=True)
    table = load_table(rank)
    net = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    total = 150
    for step in range(1, total + 1):
        x = table[torch.randint(len(table), (64,))]
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.08)
        if rank == 0:
            print(f"\r{step * 100 // total:3d}% {step}/{total} loss {loss.item():.4f}", end="", flush=True)
    if rank == 0:
        print(flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
