import argparse
import contextlib
import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def rows(rank, n, seed):
    r = random.Random(seed * 7919 + rank)
    return [[r.randrange(1, 400) for _ in range(int(min(120, max(6, r.lognormvariate(3.3, 0.6)))))] for _ in range(n)]


def micro_batches(data, size):
    for lo in range(0, len(data), size):
        part = data[lo:lo + size]
        ids = torch.zeros(len(part), max(map(len, part)), dtype=torch.long)
        for t, d in zip(ids, part):
            t[:len(d)] = torch.tensor(d)
        yield ids


class Accumulator:
    """When to step: every `fixed` micro-batches at first, later when enough tokens have been seen."""

    def __init__(self, fixed, tokens):
        self.fixed, self.tokens = fixed, tokens
        self.count = self.seen = 0

    def add(self, ids, epoch):
        self.count += 1
        self.seen += int((ids > 0).sum())
        full = self.count >= self.fixed if epoch == 0 else self.seen >= self.tokens
        if full:
            self.count = self.seen = 0
        return full


class Net(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.emb = nn.Embedding(400, d, padding_idx=0)
        enc = nn.TransformerEncoderLayer(d, 8, 2 * d, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(enc, 3, enable_nested_tensor=False)
        self.out = nn.Linear(d, 400)

    def forward(self, ids):
        h = self.enc(self.emb(ids))
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=20)
    ap.add_argument("--tokens-per-step", type=int, default=1000)
    ap.add_argument("--log", default=f"/tmp/accum-{os.getppid()}.jsonl")
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    side = dist.new_group()
    torch.manual_seed(0)
    ddp = DDP(Net())
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-4)
    acc = Accumulator(4, a.tokens_per_step)
    updates, t0 = 0, time.time()
    log = open(a.log, "w") if rank == 0 else None
    for epoch in range(a.epochs):
        total = torch.zeros(2)
        for ids in micro_batches(rows(rank, 480, epoch), 8):
            update = acc.add(ids, epoch)
            with contextlib.nullcontext() if update else ddp.no_sync():
                loss = nn.functional.cross_entropy(ddp(ids).flatten(0, 1), ids.flatten(), ignore_index=0)
                (loss / 4).backward()
            total += torch.tensor([loss.item(), 1.0])
            if update:
                opt.step()
                opt.zero_grad()
                updates += 1
                if log:
                    log.write(json.dumps({"update": updates, "loss": loss.item(), "t": time.time() - t0}) + "\n")
                    log.flush()
        dist.all_reduce(total, group=side)
        if rank == 0:
            print(f"epoch {epoch}: mean loss {total[0] / total[1]:.4f}, {updates} updates", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
