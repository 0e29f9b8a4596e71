import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from storage import SlowShare


class Recommender(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.u = nn.Embedding(users, dim)
        self.i = nn.Embedding(items, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        return self.mlp(torch.cat([self.u(u), self.i(i)], 1)).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=320)
    ap.add_argument("--save-at", type=int, nargs="*", default=[200])
    ap.add_argument("--rate", type=float, default=200e3)
    ap.add_argument("--archive", default="archive")
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(Recommender(30000, 12000, 32))
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    os.makedirs(a.archive, exist_ok=True)
    tick = time.time()
    for step in range(1, a.steps + 1):
        u = torch.randint(0, 30000, (256,), generator=gen)
        i = torch.randint(0, 12000, (256,), generator=gen)
        y = ((u * 7 + i * 3) % 11 < 4).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(u, i), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"rank{rank} step={step} loss={loss.item():.4f} "
                  f"{50 / (time.time() - tick):.1f} steps/s", flush=True)
            tick = time.time()
        if step in a.save_at:
            opt.consolidate_state_dict(to=0)
            if rank == 0:
                t = time.time()
                with SlowShare(os.path.join(a.archive, f"step{step}.pt"), a.rate) as fh:
                    torch.save({"model": model.module.state_dict(), "opt": opt.state_dict()}, fh)
                print(f"archived step {step} in {time.time() - t:.0f} s", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
