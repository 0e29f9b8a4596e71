import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import tracking


def digits(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    proto = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    return proto[y] + 2.6 * torch.randn(n, 1, 12, 12, generator=g), y


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        hits = (model(x).argmax(1) == y).float().sum()
    model.train()
    n = torch.tensor([hits, len(y)])
    dist.all_reduce(n)
    return n[0] / n[1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--project", default="scratch")
    ap.add_argument("--epochs", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    run = tracking.Run(args.project, vars(args)) if rank == 0 else tracking.NoRun()

    model = DDP(nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
                              nn.Flatten(), nn.Linear(32 * 16, 10)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    x, y = digits(3000, 10 + rank)
    vx, vy = digits(600, 90 + rank)
    best, step = 0.0, 0
    for epoch in range(args.epochs):
        for idx in torch.randperm(len(x)).split(64):
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0:
                run.log({"loss": loss.item(), "lr": opt.param_groups[0]["lr"]}, step)
        acc = accuracy(model, vx, vy)
        run.log({"val/acc": acc.item(), "epoch": epoch}, step)
        if acc > best:
            best = acc
            run.log({"val/best": best}, step)
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  val acc {acc.item():.4f}", flush=True)
    run.finish({"best": float(best), "steps": step})
    dist.barrier()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


main()
