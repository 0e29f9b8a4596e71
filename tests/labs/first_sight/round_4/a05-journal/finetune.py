import argparse
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from journal import Journal


class Adapter(nn.Module):
    def __init__(self, d=64, blocks=6):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 16), nn.SiLU(), nn.Linear(16, d))
                                    for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def run(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = nn.parallel.DistributedDataParallel(Adapter())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    journal = Journal(args.journal, rank)
    torch.manual_seed(500 + rank)
    target = torch.roll(torch.eye(64), 3, 0)
    for step in range(args.steps):
        x = torch.randn(32, 64)
        time.sleep(0.2)
        loss = (model(x) - x @ target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        journal.append(step=step, loss=loss.item())
        if rank == args.trace_rank:
            for name, p in model.named_parameters():
                journal.append(step=step, name=name, grad=p.grad.norm().item(), weight=p.norm().item())
        if rank == 0:
            sys.stderr.write("." if step % 50 else f"\n{step:5d} {loss.item():.4f} ")
            sys.stderr.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--journal", default="journal")
    p.add_argument("--trace-rank", type=int, default=-1)
    p.add_argument("--steps", type=int, default=1500)
    run(p.parse_args())
