import os

import torch
import torch.distributed as dist
from torch import nn

from corpus import load_index

STAGES = [("web", 60), ("code", 400)]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def sample(index, gen, n=32, d=128):
    parts = list(index)
    rows = torch.empty(n, d)
    for i in range(n):
        part = parts[int(torch.randint(len(parts), (1,), generator=gen))]
        off = index[part][int(torch.randint(len(index[part]), (1,), generator=gen))]
        rows[i] = torch.sin(torch.arange(d) * (off % 97 + 1) / 97)
    return rows


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=os.environ["INIT"], rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(Block(128), Block(128))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    gen = torch.Generator().manual_seed(rank)
    for stage, steps in STAGES:
        if rank == 0:
            print(f"stage {stage}", flush=True)
        index = load_index(stage)
        for step in range(steps):
            x = sample(index, gen)
            loss = (model(x).roll(1, 1) - x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            grads = torch.cat([p.grad.view(-1) for p in model.parameters()])
            dist.all_reduce(grads)
            i = 0
            for p in model.parameters():
                p.grad.copy_(grads[i : i + p.numel()].view_as(p) / world)
                i += p.numel()
            opt.step()
            if rank == 0 and (step + 1) % 20 == 0:
                print(f"  {stage} {step + 1}/{steps}: {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


main()
