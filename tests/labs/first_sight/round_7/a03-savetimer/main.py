import json
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import Checkpointer


def sample(gen, n):
    x = torch.randn(n, 16, generator=gen)
    y = (x[:, :8] * x[:, 8:]).sum(1, keepdim=True)
    return x, y


def worker(rank, cfg):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(cfg["port"]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=cfg["world"])
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)))
    opt = torch.optim.Adam(net.parameters(), cfg["lr"])
    saver = Checkpointer(cfg["save_every_seconds"], rank)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, cfg["steps"] + 1):
        x, y = sample(gen, cfg["batch"])
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % cfg["print_every"] == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 4)}), flush=True)
        if saver.due():
            saver.save(step, net.module, opt)
    saver.save(cfg["steps"], net.module, opt)
    dist.destroy_process_group()


if __name__ == "__main__":
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.json")) as f:
        config = json.load(f)
    mp.spawn(worker, args=(config,), nprocs=config["world"])
