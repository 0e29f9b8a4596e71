import argparse
import csv
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from feed import Feed


class CharLM(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.emb = nn.Embedding(256, dim)
        self.conv = nn.ModuleList(nn.Conv1d(dim, 2 * dim, 5) for _ in range(4))
        self.out = nn.Linear(dim, 256)

    def forward(self, x):
        h = self.emb(x).transpose(1, 2)
        for c in self.conv:
            a, g = c(F.pad(h, (4, 0))).chunk(2, 1)
            h = h + a * torch.sigmoid(g)
        return self.out(h.transpose(1, 2))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1500)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--csv", default="progress.csv")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    feed = Feed(rank)
    model = DDP(CharLM())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    table = None
    if rank == 0:
        fh = open(args.csv, "w", newline="", buffering=1)
        table = csv.writer(fh)
        table.writerow(["step", "loss", "seconds"])
    t0 = time.time()
    for step in range(1, args.steps + 1):
        x = feed.batch(args.batch)
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            table.writerow([step, f"{loss.item():.4f}", f"{time.time() - t0:.1f}"])
        if rank == 0 and step % 25 == 0:
            print(f"Step {step}: {loss.item():.4f} (shard {feed.next_shard})", flush=True)
    feed.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
