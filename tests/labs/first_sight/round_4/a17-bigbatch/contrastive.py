"""Contrastive pretraining with very large batches: few updates, each out of many micro-batches."""
import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tower(nn.Module):
    def __init__(self, c=24, dim=64):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, c, 5, 2, 2), nn.GELU(), nn.Conv2d(c, 2 * c, 5, 2, 2), nn.GELU())
        self.head = nn.Linear(2 * c, dim)

    def forward(self, x):
        return F.normalize(self.head(self.conv(x).mean((2, 3))), dim=-1)


def crops(gen, n=32):
    base = torch.rand(n, 3, 40, 40, generator=gen)
    time.sleep(0.1)      # decoding
    return base[..., 2:34, 2:34], base[..., 6:38, 6:38] + 0.05 * torch.randn(n, 3, 32, 32, generator=gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--accumulate", type=int, default=100)
    ap.add_argument("--updates", type=int, default=5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(Tower())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(9 + rank)
    for update in range(args.updates):
        total = 0.0
        for micro in range(args.accumulate):
            a, b = crops(gen)
            last = micro == args.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                z = model(torch.cat([a, b]))
                logits = z[:len(a)] @ z[len(a):].T / 0.1
                loss = F.cross_entropy(logits, torch.arange(len(a))) / args.accumulate
                loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
    mean = torch.tensor(total)
    dist.all_reduce(mean)
    if rank == 0:
        print(f"{args.updates} updates, last loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
