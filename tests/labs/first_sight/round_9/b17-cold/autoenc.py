import argparse
import os
import shutil

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from shelf import Shelf

WIDTH, ROWS = 128, 17000


def work(rank, a):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="31217")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=a.workers)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 16), nn.Linear(16, 512), nn.GELU(), nn.Linear(512, WIDTH)))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    shelf = Shelf(a.folder)
    for i in range(rank, a.shards, a.workers):
        x = torch.from_numpy(shelf.read(i, WIDTH).copy())
        for batch in x[torch.randperm(len(x))].split(512):
            loss = (model(batch) - batch).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(a.folder, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--shards", type=int, default=12)
    ap.add_argument("--folder", default=f"/tmp/cold-{os.getpid()}")
    a = ap.parse_args()
    Shelf(a.folder).fill(a.shards, ROWS, WIDTH)
    mp.spawn(work, (a,), a.workers)
    shutil.rmtree(a.folder)
