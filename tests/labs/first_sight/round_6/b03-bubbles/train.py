"""Naive layer split on three processes: one batch at a time goes through all stages and back."""
import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class Part(nn.Module):
    """Some layers of the network. Their weights lie on the disk and are read when a layer is used, also again
    for the backward pass: memory is short, not time."""

    def __init__(self, folder, dim, layers, read_rate):
        super().__init__()
        os.makedirs(folder, exist_ok=True)
        self.folder, self.dim, self.read_rate = folder, dim, read_rate
        self.scale = nn.ParameterList(nn.Parameter(torch.ones(dim)) for _ in range(layers))
        for i in range(layers):
            np.save(self.path(i), (torch.randn(dim, dim) / dim ** 0.5).numpy())

    def path(self, i):
        return os.path.join(self.folder, f"layer{i}.npy")

    def fetch(self, i):
        time.sleep(os.path.getsize(self.path(i)) / self.read_rate)      # what the shared disk gives us
        return torch.from_numpy(np.load(self.path(i)))

    def layer(self, i, x):
        return x + torch.tanh(x @ self.fetch(i) * self.scale[i])

    def forward(self, x):
        for i in range(len(self.scale)):
            x = checkpoint(self.layer, i, x, use_reentrant=False)
        return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=256)
    p.add_argument("--rows", type=int, default=400)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--read-rate", type=float, default=1.75e6, help="bytes a second")
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--log-every", type=int, default=4)
    args = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    torch.manual_seed(rank)
    part = Part(f"weights{rank}", args.dim, args.layers, args.read_rate)
    opt = torch.optim.SGD(part.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(77)
    start = time.time()
    for step in range(1, args.steps + 1):
        x = torch.randn(args.rows, args.dim, generator=gen)
        if not first:
            dist.recv(x, rank - 1)
        x.requires_grad_(not first)
        y = part(x)
        opt.zero_grad()
        if last:
            loss = (y - 1).pow(2).mean()
            loss.backward()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if not first:
            dist.send(x.grad, rank - 1)
        opt.step()
        if last and step % args.log_every == 0:
            print(f"{step}/{args.steps}: loss={loss.item():.5f}, {(time.time() - start) / step:.2f} s per step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
