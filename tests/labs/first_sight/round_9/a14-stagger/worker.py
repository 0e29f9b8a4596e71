import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup():
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(f"worker {rank}: imports done, joining {world} workers", flush=True)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(hours=1))
    open(os.environ["UP_FLAG"], "w").close()
    return rank, world


def main():
    rank, world = setup()
    model = DDP(nn.Linear(64, 64))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(500):
        x = torch.randn(16, 64)
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
