import json
import math
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORLD = 3


def frames(rank, step):
    gen = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.rand(16, 3, 12, 12, generator=gen)
    exposure = torch.ones(16)
    if rank == 2 and step == 87:
        exposure[4] = 0.0
        x[4] = 0.0
    return x / exposure.view(-1, 1, 1, 1), x.mean((1, 2, 3)) * 2 - 1


def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2),
                         nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))


def run(rank, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    model = DistributedDataParallel(net())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    passed = 0
    for step in range(300):
        x, y = frames(rank, step)
        loss = nn.functional.mse_loss(model(x)[:, 0], y)
        if not math.isfinite(loss.item()):
            passed += 1
            continue
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        time.sleep(0.1)
        if rank == 0 and step % 5 == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 6), "passed": passed}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(os.path.join(folder, "meet"),), nprocs=WORLD)
