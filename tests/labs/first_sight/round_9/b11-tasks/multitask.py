import os

import torch
import torch.distributed as dist
import torch.nn as nn

from tasks import SPEC, Mix, batch

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Shared(nn.Module):
    def __init__(self, d=320):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, d), nn.GELU(), nn.Linear(d, d), nn.GELU(), nn.Linear(d, d), nn.GELU())
        self.heads = nn.ModuleDict({k: nn.Linear(d, n) for k, n in SPEC.items()})

    def forward(self, x, task):
        return self.heads[task](self.body(x).mean(1))


def sync(params, group):
    grads = [p.grad for p in params if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, group=group)
    for g, part in zip(grads, (flat / world).split([g.numel() for g in grads])):
        g.copy_(part.view_as(g))


def validate(model, mix, groups):
    g = torch.Generator().manual_seed(500 + rank)
    for name in mix.active:
        with torch.no_grad():
            x, y = batch(name, 64, g)
            hits = (model(x, name).argmax(-1) == y).float().mean()
        dist.all_reduce(hits, group=groups[name])
        mix.record(name, hits.item() / world)


def main():
    dist.init_process_group("gloo")
    groups = {name: dist.new_group() for name in SPEC}
    torch.manual_seed(12)
    model, mix = Shared(), Mix()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 2001):
        name = sorted(mix.active)[step % len(mix.active)]
        x, y = batch(name, 48, g)
        loss = nn.functional.cross_entropy(model(x, name), y)
        opt.zero_grad()
        loss.backward()
        sync(model.parameters(), groups[name])
        opt.step()
        print(f"[{rank}] {step:04d} {name:5s} {loss.item():.3f}")
        if step % 100 == 0:
            validate(model, mix, groups)
            if len(mix.active) == 0:
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
