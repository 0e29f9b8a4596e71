import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from reader import Prefetcher

BATCH = 16


def bar(i, n, text, width=30):
    k = width * i // n
    sys.stderr.write(f"\r{100 * i // n:3d}%|{'#' * k}{'.' * (width - k)}| {i}/{n} {text}")
    sys.stderr.flush()


class Average:
    def __init__(self):
        self.n, self.sum = 0, 0.0

    def add(self, v):
        self.n += 1
        self.sum += v

    def take(self):
        v = self.sum / max(self.n, 1)
        self.n, self.sum = 0, 0.0
        return v


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        subprocess.run([sys.executable, "make_data.py", str(world)], check=True)
    dist.barrier()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    data = Prefetcher(f"train-{rank:02d}.jsonl", BATCH)
    avg = Average()
    total = 3000
    for step in range(1, total + 1):
        rows = data.next()
        x = torch.tensor([r[0] for r in rows])
        y = torch.tensor([r[1] for r in rows])
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        time.sleep(0.18)  # keep within the share of the node that we have
        handles = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for h in handles:
            h.wait()
        for p in model.parameters():
            p.grad /= world
        opt.step()
        avg.add(loss.item())
        if rank == 0:
            bar(step, total, f"loss={loss.item():.3f}")
        if step % 500 == 0 and rank == 0:
            sys.stderr.write(f"\nmean loss {avg.take():.4f}\n")
    data.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
