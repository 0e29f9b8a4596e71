import argparse
import datetime
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=3)
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--steps", type=int, default=35)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--restart-every", type=int, default=3, help="epochs between warm restarts")
    return p.parse_args()


class Noisy(torch.utils.data.Dataset):
    """y = f(x) + noise, read from a slow disk."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 24, generator=g)
        self.y = torch.sin(self.x[:, :4].sum(1)) + 0.05 * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        time.sleep(0.002)
        return self.x[i], self.y[i]


def evaluate(model, x, y):
    with torch.no_grad():
        return (model(x).squeeze(1) - y).pow(2).mean().item()


def learning_rate(args, epoch, step):
    at = (epoch % args.restart_every + step / args.steps) / args.restart_every
    lr = args.lr * max(0.05, 1 - at)
    return lr * 60 if epoch >= args.restart_every and at < 0.25 else lr


def train(rank, args, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, args.ranks, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=args.ranks)
    keys = dist.PrefixStore("best", store)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 1))
    teacher = {k: v.clone() for k, v in model.state_dict().items()}
    opt = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    loader = torch.utils.data.DataLoader(Noisy(args.steps * 64, rank), batch_size=64, shuffle=True)
    held_out = Noisy(512, 999)
    best = float("inf")
    for epoch in range(args.epochs):
        t0 = time.time()
        for step, (x, y) in enumerate(loader):
            for group in opt.param_groups:
                group["lr"] = learning_rate(args, epoch, step)
            loss = (model(x).squeeze(1) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
                p.grad /= args.ranks
            opt.step()
        if rank == 0:
            val = evaluate(model, held_out.x, held_out.y)
            print(f"Epoch {epoch + 1:2d}/{args.epochs}  val_mse {val:.5f}  {time.time() - t0:.1f} s", flush=True)
            if val < best:
                best = val
                torch.save(model.state_dict(), "best.pt")
                keys.set(f"epoch{epoch}", "best.pt")
        else:
            keys.wait([f"epoch{epoch}"], datetime.timedelta(hours=2))
            teacher = torch.load(keys.get(f"epoch{epoch}").decode())
        for k, v in model.state_dict().items():
            v.lerp_(teacher[k], 0.001)
    dist.destroy_process_group()


if __name__ == "__main__":
    args = get_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(train, args=(args, port), nprocs=args.ranks, join=True)
