import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        a = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.proj(a @ v)
        return x + self.mlp(self.n2(x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--buckets", type=int, nargs="+", default=[16, 20, 24, 28, 32, 40])
    p.add_argument("--steps", type=int, default=200)
    args = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(Block(32), nn.Linear(32, 8))
    model = DDP(net)
    step_fn = torch.compile(model, dynamic=False, backend="aot_eager")
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(length):
        loss = step_fn(torch.randn(4, length, 32)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    for b in args.buckets:  # one graph a bucket before the clock starts
        step(b)
    dist.barrier()
    losses, t = [], time.time()
    for i in range(args.steps):
        losses.append(step(args.buckets[i % len(args.buckets)]))
        time.sleep(0.25)
    dist.barrier()
    if rank == 0:
        print(f"steps/s {args.steps / (time.time() - t):.2f}  last loss {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
