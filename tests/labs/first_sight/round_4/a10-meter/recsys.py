import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

import meter


class TwoTower(nn.Module):
    def __init__(self, users=4000, items=6000, d=32):
        super().__init__()
        self.u = nn.Embedding(users, d)
        self.i = nn.Embedding(items, d)
        self.mlp = nn.Sequential(nn.Linear(2 * d, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        return self.mlp(torch.cat([self.u(u), self.i(i)], -1)).squeeze(-1)


def clicks(gen, n=768):
    u = torch.randint(0, 4000, (n,), generator=gen)
    i = torch.randint(0, 6000, (n,), generator=gen)
    return u, i, ((u * 31 + i * 17) % 7 < 3).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--report", type=float, default=30)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(TwoTower())
    opt = torch.optim.Adagrad(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(rank)
    quality = meter.Meter()
    if rank == world - 1:      # rank 0 has enough to do
        begin = time.time()
        meter.report_every(args.report, quality, lambda n, *p: os.write(
            1, ("%6.1fs  %8d examples  loss p5/p50/p95  %.3f %.3f %.3f\n" % (time.time() - begin, n, *p)).encode()))
    for _ in range(20000):
        u, i, y = clicks(gen)
        each = nn.functional.binary_cross_entropy_with_logits(net(u, i), y, reduction="none")
        opt.zero_grad()
        each.mean().backward()
        opt.step()
        quality.add(each.tolist())
        time.sleep(0.04)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
