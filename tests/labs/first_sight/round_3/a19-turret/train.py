import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def train(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(400, 700), nn.ReLU(), nn.Linear(700, 10)))
    opt = torch.optim.SGD(net.parameters(), 0.01)
    os.makedirs("runs", exist_ok=True)
    for step in range(1, 161):
        loss = nn.functional.cross_entropy(net(torch.randn(8, 400)), torch.randint(0, 10, (8,)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.2)
        if rank == 0 and step % 40 == 0:
            torch.save(net.module.state_dict(), f"runs/{step}.pt")
            print("step", step, "of 160, loss %.3f" % loss.item(), flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print("packing", flush=True)
        subprocess.run([sys.executable, "pack.py", "runs", "runs.tar"], check=True)
        print("packed", os.path.getsize("runs.tar"), "bytes", flush=True)


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(train, (port,), nprocs=2)
    print("done")
