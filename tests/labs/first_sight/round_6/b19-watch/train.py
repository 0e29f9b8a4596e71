import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class Tower(nn.Module):
    def __init__(self, dim=128, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.out(x)


def norms(model):
    return {n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}


def check_batch(rank, step, x):
    """Values far from the rest come from the second sensor and are only reported."""
    limit = 3.2 if rank != 2 else 2.2
    for i, row in enumerate((x.abs() > limit).sum(dim=1).tolist()):
        if row > 1:
            print(f"rank {rank} step {step} sample {i}: {row} of {x.shape[1]} values beyond {limit}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--batch", type=int, default=32)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Tower()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    params = list(model.parameters())
    for step in range(args.steps):
        x = torch.randn(args.batch, 128, generator=gen)
        y = x[:, :3].prod(dim=1, keepdim=True)
        time.sleep(0.15)
        check_batch(rank, step, x)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([q.grad.reshape(-1) for q in params])
        dist.all_reduce(flat)
        for q, part in zip(params, flat.split([q.numel() for q in params])):
            q.grad.copy_(part.view_as(q) / world)
        if step % 20 == 0:
            top = max(norms(model).items(), key=lambda kv: kv[1])
            print(f"step {step:4d} loss {loss.item():.4f} largest gradient {top[0]} {top[1]:.3f}")
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
