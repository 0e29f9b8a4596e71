import time
from datetime import datetime

import torch
import torch.distributed as dist
from torch import nn

from offload import Offload


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dev = Offload("archive") if rank == 0 else None
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(36, 50), nn.ReLU(), nn.Linear(50, 36)))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    step = 0
    while step < 1500:
        wait = 0.05 if step % 7 else 1.2
        x = torch.randn(12, 36)
        loss = nn.functional.smooth_l1_loss(net(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(wait)
        step += 1
        print(datetime.now().strftime("%H:%M:%S"), f"r{rank} s{step} l={loss.item():.5f} dt={wait}", flush=True)
        if dev and step % 60 == 0:
            torch.save(net.module.state_dict(), f"step{step}.pt")
            dev.push(f"step{step}.pt")


if __name__ == "__main__":
    main()
