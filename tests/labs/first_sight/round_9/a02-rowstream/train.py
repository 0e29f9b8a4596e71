import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from streaming import AsyncRows

WORLD = 2
STEPS = 2000


def worker(rank):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "31102")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    rows = AsyncRows(os.path.join("data", f"part-{rank:05d}.jsonl"), batch_size=6)
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 4)))
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    lossf = nn.CrossEntropyLoss()
    seen, t0 = 0, time.time()
    for step, (x, y) in enumerate(rows, 1):
        opt.zero_grad()
        loss = lossf(model(x), y)
        loss.backward()
        opt.step()
        seen += len(x)
        time.sleep(0.2)
        if rank == 0:
            width = 30 * step // STEPS
            sys.stderr.write(f"\r{step:5d}/{STEPS} |{'#' * width}{'.' * (30 - width)}| "
                             f"loss={loss.item():.3f} rows/s={seen / (time.time() - t0):.1f} ")
            sys.stderr.flush()
        if step == STEPS:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, nprocs=WORLD)
