import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from data import blobs
from selection import Selector

WORLD, PORT, PER_ROUND = 3, 31704, 30


def worker(rank):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", PORT, WORLD, rank == 0, timeout=timedelta(minutes=60))
    dist.init_process_group("gloo", store=dist.PrefixStore("pg", store), rank=rank, world_size=WORLD)
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(96, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = blobs(4096, 100 + rank)
    vx, vy = blobs(1024, 9)
    select = Selector(dist.PrefixStore("select", store), rank)

    def score():
        with torch.no_grad():
            return (net(vx).argmax(1) == vy).float().mean().item()

    for step in range(1, 1501):
        i = torch.randint(0, len(x), (64,))
        loss = nn.functional.cross_entropy(net(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(flat)
        at = 0
        for p in net.parameters():
            p.grad.copy_(flat[at: at + p.numel()].view_as(p) / WORLD)
            at += p.numel()
        opt.step()
        if step % PER_ROUND == 0:
            verdict = select(score)
            for group in opt.param_groups:
                group["lr"] *= verdict["scale"]
            print(f"[{rank}] step {step} loss {loss.item():.3f} score {verdict['score']:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, nprocs=WORLD)
