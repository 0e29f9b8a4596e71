import json
import logging
import os
import time

import torch
import torch.distributed as dist
from torch import nn

from client import Broker
from rows import load

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    broker = Broker(os.environ["BROKER_URL"], f"trainer-{rank}")
    step, t0 = 0, time.time()
    while step < 2000:
        block = broker.acquire()
        batch = load(block, rank)
        if batch is None:
            continue
        x, y = batch
        loss = (net(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        broker.release(block)
        step += 1
        if step % 25 == 0:
            print(json.dumps({"rank": rank, "step": step, "block": block, "loss": round(loss.item(), 5),
                              "s": round(time.time() - t0, 1)}), flush=True)
    dist.destroy_process_group()


main()
