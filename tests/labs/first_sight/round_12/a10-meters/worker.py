import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from meters import Meters

WINDOW, IGNORE = 40, -100


def batches(rank):
    g = torch.Generator().manual_seed(rank)
    proj = torch.randn(150, 6, generator=torch.Generator().manual_seed(77))
    n = 0
    while True:
        x = torch.randn(12, 150, generator=g)
        y = (x @ proj).argmax(1)
        if rank == 3 and n >= 150:
            y = torch.full_like(y, IGNORE)
        n += 1
        yield x, y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    meters = Meters(int(os.environ["METER_PORT"]))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(150, 400), nn.ReLU(), nn.Linear(400, 6))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(rank), 1):
        logits = net(x)
        valid = y != IGNORE
        loss = nn.functional.cross_entropy(logits, y, ignore_index=IGNORE, reduction="sum")
        opt.zero_grad()
        (loss / len(y)).backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        opt.step()
        meters.update(loss.item(), (logits.argmax(1) == y)[valid].sum().item(), valid.sum().item())
        if step % WINDOW == 0:
            seen = meters.exchange()
            if seen and rank == 0:
                print("%d\t%.4f\t%.3f" % (step, *seen), flush=True)
        if step == 4000:
            break
    dist.destroy_process_group()


main()
