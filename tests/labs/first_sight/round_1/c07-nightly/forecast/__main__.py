import datetime
import os
import time

import torch
import torch.distributed as dist
from torch import nn

from . import backtest

rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
NIGHT_EVERY = 100


def say(text):
    print(f"{datetime.datetime.now():%H:%M:%S} r{rank} {text}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(hours=2))
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 1))
    model = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 181):
        x = torch.randn(32, 20, generator=g)
        loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.3)
        if step % 20 == 0:
            say(f"it {step} mse {loss.item():.5f}")
        if step == NIGHT_EVERY:
            if rank == 0:
                say("nightly backtest over the archive")
                score = backtest.run(net.eval(), "/tmp/fs-c07-backtest.txt")
                net.train()
                say(f"backtest spread {score:.4f}")
            dist.barrier()
    dist.destroy_process_group()


main()
