import os
import random
import time
import urllib.error
import urllib.request

import torch
import torch.distributed as dist
from torch import nn


def download(url, path):
    for attempt in range(12):
        try:
            with urllib.request.urlopen(url, timeout=30) as r, open(path + ".part", "wb") as f:
                while chunk := r.read(4096):
                    f.write(chunk)
            os.rename(path + ".part", path)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(min(2 ** attempt, 20) + random.random())
    raise SystemExit(f"{url}: gave up")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        while not os.path.exists("mirror.port"):
            time.sleep(0.2)
        download(f"http://127.0.0.1:{open('mirror.port').read()}/set.bin", "set.bin")
    dist.barrier()
    raw = torch.frombuffer(bytearray(open("set.bin", "rb").read()), dtype=torch.uint8).float() / 255
    x = raw.view(-1, 64)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 64)))
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    for epoch in range(4):
        order = torch.randperm(len(x))
        for part in order[: 40 * 32].split(32):
            loss = (net(x[part]) - x[part]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.1)
        if rank == 0:
            print(f"epoch {epoch + 1}/4  mse {loss.item():.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
