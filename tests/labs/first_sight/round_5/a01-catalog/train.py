import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from catalog import Catalog


def make_data(rank, n=512):
    g = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(n, 32, generator=g)
    y = (x[:, :4].sum(1, keepdim=True) + 0.3 * torch.randn(n, 1, generator=g))
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--db", default="runs.db")
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if rank == 0:
        if os.path.exists(args.db):
            os.remove(args.db)
        Catalog(args.db).create()
    dist.barrier()
    catalog = Catalog(args.db)

    model = DDP(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    x, y = make_data(rank)
    for epoch in range(args.epochs):
        losses = []
        if epoch == 6:
            for group in opt.param_groups:
                group["lr"] = args.lr * 10
        for step in range(args.steps):
            idx = torch.randint(0, len(x), (64,))
            loss = nn.functional.mse_loss(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            time.sleep(0.03)
        mean = torch.tensor([sum(losses) / len(losses)])
        dist.all_reduce(mean)
        mean /= world
        if rank == 0:
            best = catalog.close_epoch(epoch, mean.item(), opt.param_groups[0]["lr"])
            logging.info("epoch %d loss %.4f%s", epoch, mean.item(), " *" if best else "")
        dist.barrier()
        if rank != 0:
            catalog.add_worker(epoch, rank, losses)
        dist.barrier()
    catalog.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
