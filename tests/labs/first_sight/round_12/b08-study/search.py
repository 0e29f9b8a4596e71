import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from study import Pruned, Study

GRID = [
    {"lr": 0.03, "width": 64}, {"lr": 0.05, "width": 128}, {"lr": 0.08, "width": 96},
    {"lr": 0.0005, "width": 64}, {"lr": 0.1, "width": 128}, {"lr": 0.002, "width": 256},
]


def table(rank, n=2400):
    g = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(n, 20, generator=g)
    y = (x[:, 0] * x[:, 1]).sin() + x[:, 2:6].sum(1) / 2
    return x, y[:, None]


def objective(trial):
    torch.manual_seed(trial.number)
    width = trial.params["width"]
    model = DDP(nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=trial.params["lr"])
    x, y = table(dist.get_rank())
    for epoch in range(6):
        total, n = torch.zeros(()), 0
        for idx in torch.randperm(len(x)).split(32):
            loss = nn.functional.mse_loss(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total, n = total + loss.detach(), n + 1
        mean = total / n
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        value = mean.item() / dist.get_world_size()
        trial.report(value, epoch)
        if trial.should_prune():
            raise Pruned
    return value


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trials", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    best = Study(GRID).optimize(objective, args.trials)
    if best:
        print("best", best, flush=True)
    dist.destroy_process_group()


main()
