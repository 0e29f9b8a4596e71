import os
import shutil
import time
import urllib.request

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

CACHE = "hub"


def local_copy(name):
    """The first rank downloads, the others use its copy."""
    path = os.path.join(CACHE, name)
    if dist.get_rank() == 0 and not os.path.exists(path):
        os.makedirs(CACHE, exist_ok=True)
        url = open("mirror.addr").read() + "/" + name
        with urllib.request.urlopen(url, timeout=60) as r, open(path + ".incomplete", "wb") as f:
            shutil.copyfileobj(r, f, 1 << 15)
        os.replace(path + ".incomplete", path)
    dist.barrier()
    return path


def load(path, model):
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    at = 0
    with torch.no_grad():
        for p in model.parameters():
            part = raw[at : at + p.numel()].astype(np.float32)
            p.copy_(torch.from_numpy(part / 255 - 0.5).view_as(p) * 0.1)
            at += p.numel()


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    load(local_copy("base-weights.bin"), model)
    opt = torch.optim.SGD(model.parameters(), 0.02)
    gen = torch.Generator().manual_seed(rank)
    steps = 150
    for step in range(1, steps + 1):
        x = torch.randn(16, 128, generator=gen)
        time.sleep(0.2)  # pages come from the tape robot
        loss = (model(x) - x.abs()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"{step}/{steps} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        torch.save(model.state_dict(), "tuned.pt")
        print("saved", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
