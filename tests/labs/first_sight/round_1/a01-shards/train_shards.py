"""Train the click model from pre-tokenised shards, one stream of shards per rank."""
import argparse
import datetime as dt
import glob
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class ShardStream(IterableDataset):
    def __init__(self, pattern, rank, world):
        self.files = sorted(glob.glob(pattern))[rank::world]

    def __iter__(self):
        for name in self.files:
            blob = np.load(name)
            for x, y in zip(blob["x"], blob["y"]):
                time.sleep(0.004)  # the real shards sit behind s3fs
                yield torch.from_numpy(x), int(y)


class ClickNet(nn.Module):
    def __init__(self, d=64, h=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, h), nn.GELU())
        self.head = nn.Linear(h, 2)

    def forward(self, x):
        return self.head(self.body(x))


def bar(rank, epoch, i, loss, width=30):
    if rank == 0:
        n = (i // 3) % (width + 1)
        sys.stderr.write(f"\repoch {epoch} [{'#' * n}{'.' * (width - n)}] it {i} loss {loss:.4f}")
        sys.stderr.flush()


def run_epoch(model, opt, loader, epoch, rank):
    seen = 0
    for i, (x, y) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        seen += len(y)
        bar(rank, epoch, i, loss.item())
    return seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shards", default="data/part-*.npz")
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=24)
    args = ap.parse_args()

    dist.init_process_group("gloo", timeout=dt.timedelta(hours=1))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = DDP(ClickNet())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    stream = ShardStream(args.shards, rank, world)
    loader = DataLoader(stream, batch_size=args.batch, drop_last=True)

    for epoch in range(args.epochs):
        t0 = time.time()
        seen = run_epoch(model, opt, loader, epoch, rank)
        # everybody through the epoch before the checkpoint is written
        dist.monitored_barrier(timeout=dt.timedelta(minutes=45), wait_all_ranks=True)
        if rank == 0:
            torch.save(model.module.state_dict(), "click.pt")
            print(f"\nepoch {epoch}: {seen} samples on rank 0, {time.time() - t0:.1f}s", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
