import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from meters import LossMeter

log = logging.getLogger("main")


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 1))
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    target = torch.randn(40, generator=torch.Generator().manual_seed(0))
    meter = LossMeter("status.json")
    warmup = 100
    for step in range(1, 5001):
        x = torch.randn(512, 40)
        y = (x @ target).sin()
        per_sample = F.mse_loss(net(x).squeeze(1), y, reduction="none")
        opt.zero_grad()
        per_sample.mean().backward()
        average_gradients(net, world)
        opt.step()
        if rank == 0:
            meter.add(per_sample.tolist())
            if step == warmup:
                meter.start_publishing(0.2)
            if step % 20 == 0:
                log.info("step %d median %.4f p95 %.4f", step, meter.summary[0.5], meter.summary[0.95])
        time.sleep(0.08)
    dist.barrier()


if __name__ == "__main__":
    main()
