import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from records import DIM, Reader, write_shard

WORLD = 2


def train(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="31115")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    reader = Reader(os.path.join(folder, f"rows-{rank}.bin"))
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(DIM, 24), nn.GELU(), nn.Linear(24, DIM)))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(1, 4001):
        x = reader.next()
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.18)
        if step % 10 == 0:
            print(json.dumps({"rank": rank, "step": step, "loss": loss.item()}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    folder = tempfile.mkdtemp(prefix="rows-")
    for rank, block in ((0, 0), (1, 60)):
        write_shard(os.path.join(folder, f"rows-{rank}.bin"), 3000, rank, block)
    mp.spawn(train, args=(folder,), nprocs=WORLD)


if __name__ == "__main__":
    main()
