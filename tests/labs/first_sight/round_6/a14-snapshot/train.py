import os
import time

import torch
import torch.distributed as dist
from torch import nn

from snapshot import Snapshots

SAVE_AT = 80


def sync(model, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()
    return flat.norm().item()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(300, 700), nn.Tanh(), nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 300))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    snapshots = Snapshots("snapshots")
    gen = torch.Generator().manual_seed(rank)
    t0 = time.time()
    for step in range(1, 6001):
        x = torch.randn(256, 300, generator=gen).cumsum(1) / 17
        loss = (model(x) - x.flip(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        norm = sync(model, world)
        opt.step()
        if step % 25 == 0:
            print(f"[{rank}] {step} loss={loss.item():.4f} grad={norm:.3f} {step / (time.time() - t0):.2f} it/s",
                  flush=True)
        if step % SAVE_AT == 0:
            parts = {"rng": gen.get_state(), "step": step}
            if rank == 0:
                parts.update(model=model.state_dict(), optim=opt.state_dict())
            snapshots.save(step, parts)
    snapshots.wait()
    dist.destroy_process_group()


main()
