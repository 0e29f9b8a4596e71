import logging
import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.nn as nn
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from stopper import Stopper

WORLD = 3


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 40, generator=g)
    w = torch.linspace(-1, 1, 40)
    y = torch.sin(x @ w) + 0.3 * torch.randn(n, generator=g)
    return x, y


def run(rank, folder):
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s", datefmt="%H:%M:%S")
    log = logging.getLogger("fit")
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), WORLD)
    store.set_timeout(timedelta(hours=2))
    dist.init_process_group("gloo", store=dist.PrefixStore("pg", store), rank=rank, world_size=WORLD)

    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    x, y = make_data(6000, 10 + rank)
    vx, vy = make_data(1500, 99)
    stopper = Stopper(dist.PrefixStore("early", store), rank,
                      save=lambda step: torch.save(net.module.state_dict(), os.path.join(folder, "best.pt")))
    for step in range(1, 2001):
        pick = torch.randint(0, len(x), (64,))
        loss = ((net(x[pick]).squeeze(1) - y[pick]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if step % 25 == 0:
            with torch.no_grad():
                val = ((net.module(vx).squeeze(1) - vy) ** 2).mean().item() if rank == 0 else None
            if rank == 0:
                log.info("step %d train %.4f val %.4f", step, loss.item(), val)
            if stopper(step, val):
                log.info("stopping at step %d", step)
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as folder:
        mp.spawn(run, args=(folder,), nprocs=WORLD)
