import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from saver import Saver

logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(name)s %(message)s")
log = logging.getLogger("train")
TOTAL, EVERY = 200, 40


def evaluate(model, rank):
    g = torch.Generator().manual_seed(rank)
    x = torch.randn(512, 30, generator=g)
    with torch.no_grad():
        v = {"val/loss": nn.functional.mse_loss(model.module(x), x.cumsum(1))}
    for t in v.values():
        dist.all_reduce(t)
        t /= dist.get_world_size()
    return {k: t.item() for k, t in v.items()}


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    saver = Saver(os.path.join("out", time.strftime("%H%M%S"))) if rank == 0 else None
    model = DDP(nn.Sequential(nn.Linear(30, 100), nn.ReLU(), nn.Linear(100, 30)))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    best = {}
    for step in range(1, TOTAL + 1):
        x = torch.randn(64, 30)
        loss = nn.functional.mse_loss(model(x), x.cumsum(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.15)
        if step % EVERY == 0:
            found = evaluate(model, rank)
            if rank == 0:
                log.info("step %d/%d loss %.4f %s", step, TOTAL, loss.item(), found)
                saver.submit(f"step-{step}", model.module.state_dict())
                for k, v in found.items():
                    if step > TOTAL // 2 and v < best.get(k, float("inf")):
                        best[k] = v
                        saver.submit(f"best-{k}-{step}", model.module.state_dict())
    if rank == 0:
        saver.close()
        log.info("done")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
