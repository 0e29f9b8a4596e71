import datetime
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import multiprocessing as mp

WORLD = 3
EXPERTS = 6
LOG_EVERY = 20


class Meter:
    """Running mean over all ranks, in a group of its own."""

    def __init__(self):
        self.group = dist.new_group()
        self.total, self.n = 0.0, 0

    def add(self, value):
        self.total += value
        self.n += 1

    def mean(self):
        t = torch.tensor([self.total, float(self.n)])
        dist.all_reduce(t, group=self.group)
        self.total, self.n = 0.0, 0
        return (t[0] / t[1]).item()


class LoadCounter:
    """How many tokens each expert got since the last line."""

    def __init__(self):
        self.group = dist.new_group()
        self.counts = torch.zeros(EXPERTS, dtype=torch.int64)

    def add(self, choice):
        self.counts += torch.bincount(choice, minlength=EXPERTS)

    def shares(self):
        c = self.counts.clone()
        dist.all_reduce(c, group=self.group)
        self.counts.zero_()
        return c / c.sum()


class Logger:
    def __init__(self, meter, load):
        self.meter, self.load = meter, load
        self.t0 = time.time()

    def line(self, step):
        if dist.get_rank() == 0:
            text = f"{step:6d} | loss {self.meter.mean():.4f} | "
            text += "load " + " ".join(f"{s:.2f}" for s in self.load.shares().tolist())
            print(text + f" | {time.time() - self.t0:.1f}s", flush=True)
        else:
            self.load.shares()
            self.meter.mean()


class Mixture(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.gate = nn.Linear(dim, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(EXPERTS))
        self.out = nn.Linear(dim, 8)

    def forward(self, x):
        p = torch.softmax(self.gate(x), dim=-1)
        y = sum(p[:, i:i + 1] * torch.relu(e(x)) for i, e in enumerate(self.experts))
        return self.out(y), p.argmax(dim=-1)


def worker(rank, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD,
                            timeout=datetime.timedelta(hours=2))
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Mixture())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    meter, load = Meter(), LoadCounter()
    logger = Logger(meter, load)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, 2001):
        x = torch.randn(64, 48, generator=gen)
        y = x[:, :8].argmax(dim=1)
        logits, choice = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.2)
        meter.add(loss.item())
        load.add(choice)
        if step <= 10 and rank == 0:
            print(f"{step:6d} | loss {loss.item():.4f} (rank 0)", flush=True)
        if step % LOG_EVERY == 0:
            logger.line(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(worker, (free,), WORLD)
