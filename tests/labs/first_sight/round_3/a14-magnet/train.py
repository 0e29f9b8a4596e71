import os
import time

import torch
import torch.distributed as dist
from torch import nn
from keeper import Keeper


def run():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(50, 80), nn.ELU(), nn.Linear(80, 50)))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    keeper = Keeper(net.module, every=2.3) if rank == 0 else None
    for it in range(3000):
        x = torch.randn(24, 50)
        loss = (net(x) - x.flip(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        if keeper:
            keeper.update(opt, scale=0.5)
        else:
            for p in net.parameters():
                p.grad.mul_(0.5)
            opt.step()
        time.sleep(0.05)
        if it % 50 == 0:
            print(f"({rank}) {it}/3000 {loss.item():.5f}", flush=True)


run()
