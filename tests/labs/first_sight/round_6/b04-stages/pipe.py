#!/usr/bin/env python
"""GPipe on three processes: all forwards of the micro batches, then all backwards."""
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn

MICRO, MICRO_SIZE, DIM, CLASSES = 4, 8, 96, 10
SAMPLES = 60 * MICRO * MICRO_SIZE + 24
EPOCHS = 3


class Stage(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        layers = [nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM), nn.ReLU()]
        if first:
            layers.insert(0, nn.Linear(32, DIM))
        if last:
            layers.append(nn.Linear(DIM, CLASSES))
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)


def load(seed=3):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, 32, generator=gen)
    y = (x[:, :CLASSES].argmax(dim=1)).long()
    return x, y


def main():
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    first, last = rank == 0, rank == world - 1
    torch.manual_seed(rank)
    stage = Stage(first, last)
    opt = torch.optim.SGD(stage.parameters(), lr=0.05, momentum=0.9)
    x, y = load()
    batch = MICRO * MICRO_SIZE
    step = 0
    for epoch in range(EPOCHS):
        for lo in range(0, SAMPLES, batch):
            step += 1
            time.sleep(0.12 if first else 0.02)
            acts, outs, losses = [], [], []
            if first:
                for part in x[lo:lo + batch].split(MICRO_SIZE):
                    out = stage(part)
                    outs.append(out)
                    dist.send(out.detach(), rank + 1)
            else:
                for i in range(MICRO):
                    act = torch.empty(MICRO_SIZE, DIM)
                    dist.recv(act, rank - 1)
                    act.requires_grad_()
                    acts.append(act)
                    out = stage(act)
                    if last:
                        at = lo + i * MICRO_SIZE
                        losses.append(nn.functional.cross_entropy(out, y[at:at + MICRO_SIZE]))
                    else:
                        dist.send(out.detach(), rank + 1)
                    outs.append(out)
            opt.zero_grad()
            for i in range(len(outs)):
                if last:
                    (losses[i] / MICRO).backward()
                else:
                    grad = torch.empty(MICRO_SIZE, DIM)
                    dist.recv(grad, rank + 1)
                    outs[i].backward(grad)
                if not first:
                    dist.send(acts[i].grad, rank - 1)
            opt.step()
            if last and step % 20 == 0:
                mean = sum(l.item() for l in losses) / len(losses)
                print(f"epoch {epoch} step {step} loss {mean:.4f}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
