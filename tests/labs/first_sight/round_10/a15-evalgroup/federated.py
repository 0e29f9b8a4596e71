import argparse
import csv
import datetime
import time

import torch
import torch.distributed as dist
from torch import nn

from holdout import Holdout


def make(seed, n, width=40, classes=6):
    base = torch.Generator().manual_seed(0)
    proto = torch.randn(classes, width, generator=base)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return proto[y] * 0.7 + torch.randn(n, width, generator=g), y


class Averager:
    """Plain averaging while warming up, then only the part of the parameters that moved, in a group of its own."""

    def __init__(self, model, world, warmup):
        self.model, self.world, self.warmup = model, world, warmup
        self.group = None
        self.last = None

    def exchange(self, t):
        dist.all_reduce(t, group=self.group)
        return t / self.world

    @torch.no_grad()
    def __call__(self, rnd):
        if rnd == self.warmup + 1:
            self.group = dist.new_group(timeout=datetime.timedelta(hours=1))
        flat = nn.utils.parameters_to_vector(self.model.parameters())
        if rnd <= self.warmup:
            flat = self.exchange(flat)
        else:
            delta = flat - self.last
            delta[delta.abs() < delta.abs().median()] = 0
            flat = self.last + self.exchange(delta)
        nn.utils.vector_to_parameters(flat, self.model.parameters())
        self.last = flat


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=800)
    ap.add_argument("--local-steps", type=int, default=4)
    ap.add_argument("--validate-after", type=int, default=40)
    ap.add_argument("--warmup", type=int, default=150)
    ap.add_argument("--owners", type=int, nargs="+", default=[0, 1])
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 6))
    opt = torch.optim.SGD(model.parameters(), 0.05)
    x, y = make(10 + rank, 6000)
    average = Averager(model, world, a.warmup)
    hold = Holdout(a.owners, rank, make)
    out = csv.writer(open(f"site{rank}.csv", "w", buffering=1))
    for rnd in range(1, a.rounds + 1):
        for _ in range(a.local_steps):
            idx = torch.randint(0, len(x), (32,))
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        average(rnd)
        out.writerow([rnd, f"{loss.item():.4f}"])
        if rnd % 20 == 0:
            print(f"site {rank}: round {rnd}, loss {loss.item():.4f}", flush=True)
        if rnd % a.validate_after == 0:
            acc = hold.score(model)
            if acc is not None and rank == a.owners[0]:
                print(f"round {rnd}: hold-out accuracy {acc:.3f}", flush=True)
        time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
