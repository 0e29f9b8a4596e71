import logging
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

from mixture import Mixture, sample

STAGES = [("short", ["wiki"], 150), ("mixed", ["wiki", "books", "code"], 400), ("long", ["books", "arxiv"], 400)]

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("curriculum")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank:
        log.setLevel(logging.WARNING)
    box = [tempfile.mkdtemp(prefix="mixture-") if rank == 0 else None]
    dist.broadcast_object_list(box)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(23, 128), nn.ReLU(), nn.Linear(128, 23))
    ddp = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.AdamW(ddp.parameters(), 1e-3)
    store = dist.distributed_c10d._get_default_store()
    mixture = Mixture(box[0], store, rank)
    done = 0
    for stage, sources, steps in STAGES:
        log.info("stage %s: %s, %d steps", stage, "+".join(sources), steps)
        entries = mixture.open(stage, sources, 20000)
        for i in range(steps):
            x, y = sample(entries, rank, world, done, 32)
            loss = nn.functional.mse_loss(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            time.sleep(0.04)
            if done % 50 == 0:
                log.info("step %d loss %.4f", done, loss.item())
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
