import os
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = 5
BUDGET = 20.0  # seconds of micro-batches in each step; a rank does as many as it can


class Mixer(nn.Module):
    def __init__(self, tokens=64, d=256, depth=3):
        super().__init__()
        self.tok = nn.ModuleList(nn.Linear(tokens, tokens) for _ in range(depth))
        self.ch = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.out = nn.Linear(d, 100)

    def forward(self, x):
        for t, c in zip(self.tok, self.ch):
            x = x + t(x.transpose(1, 2)).transpose(1, 2)
            x = x + c(x)
        return self.out(x.mean(1))


def one(model, gen):
    x = torch.randn(16, 64, 256, generator=gen)
    y = (x[:, 0, :100] + 0.5 * x[:, 1, :100]).argmax(1)
    return nn.functional.cross_entropy(model(x), y)


def merge(model, count):
    """Mean gradient of all micro-batches of all ranks."""
    n = torch.tensor([float(count)])
    dist.all_reduce(n)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= n
    return int(n.item())


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/.rdv", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Mixer()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        tic, total, count = time.time(), 0.0, 0
        while time.time() - tic < BUDGET:
            loss = one(model, gen)
            loss.backward()
            total += loss.item()
            count += 1
        n = merge(model, count)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print(f"step {step}/{STEPS} loss {total / count:.4f} micro-batches {n} norm {norm:.3f} took {time.time() - tic:.1f} s", flush=True)
    dist.destroy_process_group()


main()
