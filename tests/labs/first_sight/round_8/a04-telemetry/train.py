import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from telemetry import Telemetry


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.c2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 49, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.out(F.relu(self.fc(x.flatten(1))))


def run(cfg):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg["seed"])
    net = nn.parallel.DistributedDataParallel(Net())
    opt = torch.optim.Adam(net.parameters(), cfg["lr"])
    tele = None
    if rank == 0:
        out = tempfile.mkdtemp(prefix="digits-")
        tele = Telemetry(os.path.join(out, "telemetry.jsonl"))
    gen = torch.Generator().manual_seed(100 + rank)
    bar = 0
    for step in range(cfg["steps"]):
        y = torch.randint(0, 10, (64,), generator=gen)
        x = torch.randn(64, 1, 28, 28, generator=gen) * 0.3
        x[torch.arange(64), 0, y, y] += 3
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if tele:
            tele.record(step, loss.item(), net.module)
            done = int(40 * (step + 1) / cfg["steps"])
            sys.stderr.write(f"\r[{'#' * done}{'.' * (40 - done)}] {step + 1}/{cfg['steps']} loss {loss.item():.3f}")
            sys.stderr.flush()
    if tele:
        tele.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    run({"seed": 1, "lr": 1e-3, "steps": 4000})
