import json
import os
import time
import urllib.error
import urllib.request

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

URL = "http://" + os.environ["TEACHER"] + "/"


def teach(x, tries=60):
    body = json.dumps(x.tolist()).encode()
    for n in range(tries):
        try:
            with urllib.request.urlopen(URL, body, timeout=30) as r:
                return torch.tensor(json.load(r))
        except (urllib.error.URLError, ConnectionError):
            print(f"teacher not ready, attempt {n + 1}/{tries}", flush=True)
            time.sleep(4)
    raise SystemExit("no teacher")


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = DDP(nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 5)))
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    gen = torch.Generator().manual_seed(rank)
    bank = torch.randn(2048, 10, generator=torch.Generator().manual_seed(9))
    # a first phase on its own targets, then the teacher's
    for step in range(1, 501):
        at = torch.randint(0, len(bank), (64,), generator=gen)
        loss = F.mse_loss(net(bank[at]), bank[at][:, :5])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"warm-up {step}/500 loss {loss.item():.4f}", flush=True)
    soft = torch.empty(len(bank), 5)
    if rank == 1:
        soft = torch.cat([teach(part) for part in bank.split(256)])
    dist.broadcast(soft, 1)
    for step in range(1, 501):
        at = torch.randint(0, len(bank), (64,), generator=gen)
        loss = F.kl_div(F.log_softmax(net(bank[at]), 1), F.softmax(soft[at], 1), reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"distil {step}/500 loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
