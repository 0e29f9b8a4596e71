import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

from p2p import Link
from schedule import run_step

DIM, ROWS = 64, 1976


def build(stage, stages):
    layers = [nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM)]
    return nn.Sequential(*layers, nn.LayerNorm(DIM)) if stage < stages - 1 else nn.Sequential(*layers)


def batches(args, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, DIM, generator=g)
    y = x.cumsum(1) / 8
    for lo in range(0, ROWS, args.global_batch):
        yield x[lo:lo + args.global_batch].split(args.micro_batch), y[lo:lo + args.global_batch].split(args.micro_batch)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--global-batch", type=int, default=32)
    ap.add_argument("--micro-batch", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    stage, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(stage)
    module = build(stage, stages)
    opt = torch.optim.Adam(module.parameters(), lr=1e-3)
    link = Link(stage, stages, (args.micro_batch, DIM))
    done, t = 0, time.time()
    for epoch in range(args.epochs):
        for inputs, labels in batches(args, epoch):
            n = len(inputs) if stage == 0 else args.global_batch // args.micro_batch
            opt.zero_grad()
            loss = run_step(link, module, inputs, labels, n)
            opt.step()
            done += 1
            if stage == stages - 1 and done % 10 == 0:
                print(f" iteration {done:6d} | consumed samples {done * args.global_batch:8d} | "
                      f"elapsed {time.time() - t:6.1f} s | lm loss {loss:.4E}", flush=True)
    dist.destroy_process_group()


main()
