import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from client import Index

WARMUP, REFRESH, STEPS = 150, 100, 3000


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    index = Index(os.environ["INDEX"])
    shape = torch.empty(3000, 16)
    if rank == 0:
        shape = torch.tensor(index.items())
    dist.broadcast(shape, 0)
    items = shape
    torch.manual_seed(0)
    tower = DDP(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 16)))
    opt = torch.optim.Adam(tower.parameters(), 1e-3)
    proj = torch.randn(16, 24, generator=torch.Generator().manual_seed(2))
    gen = torch.Generator().manual_seed(10 + rank)
    hard = None
    for step in range(1, STEPS + 1):
        target = torch.randint(0, len(items), (32,), generator=gen)
        query = items[target] @ proj + 0.3 * torch.randn(32, 24, generator=gen)
        out = F.normalize(tower(query), dim=1)
        pool = items[torch.randint(0, len(items), (256,), generator=gen)]
        if hard is not None:
            pool = torch.cat([pool, items[hard]])
        pos = (out * items[target]).sum(1, keepdim=True)
        loss = F.cross_entropy(torch.cat([pos, out @ pool.T], 1) / 0.1, torch.zeros(32, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}/{STEPS} nce {loss.item():.3f}", flush=True)
        if step >= WARMUP and step % REFRESH == 0:
            near = index.nearest(out.detach().tolist(), 4)
            hard = torch.tensor(near).flatten()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
