"""Arrhythmia classifier, one shard a rank.   torchrun train_ecg.py SHARDS EPOCHS"""
import sys
import time
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from common import Shard, shards

BATCH, WINDOW, CLASSES = 8, 256, 5


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        ch = [1, 16, 32, 64]
        self.body = nn.Sequential(*[
            nn.Sequential(nn.Conv1d(a, b, 7, stride=2, padding=3), nn.GroupNorm(4, b), nn.ReLU())
            for a, b in zip(ch, ch[1:])])
        self.head = nn.Linear(ch[-1], CLASSES)

    def forward(self, x):
        return self.head(self.body(x).mean(-1))


def collate(shard, ids):
    labels, windows = zip(*(shard.read(i) for i in ids))
    x = torch.from_numpy(np.stack(windows))[:, None]
    x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
    return x, torch.tensor(labels)


def bar(epoch, done, total, loss, t0):
    width = 28
    fill = int(width * done / total)
    rate = done / max(time.time() - t0, 1e-6)
    sys.stderr.write(f"\repoch {epoch} |{'#' * fill}{'.' * (width - fill)}| {done}/{total} "
                     f"{rate:.1f} it/s loss={loss:.3f}")
    sys.stderr.flush()


def train_step(model, opt, shard, ids):
    x, y = collate(shard, ids)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.item()


def main(folder, epochs):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    shard = Shard(shards(folder)[rank])
    torch.manual_seed(1)
    model = DDP(ConvNet())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    rng = np.random.default_rng(rank)
    skipped = 0
    for epoch in range(epochs):
        order = rng.permutation(len(shard))
        batches = [order[i:i + BATCH] for i in range(0, len(order), BATCH)]
        loss, t0 = float("nan"), time.time()
        for n, ids in enumerate(batches, 1):
            try:
                loss = train_step(model, opt, shard, ids)
            except (ValueError, RuntimeError) as e:
                skipped += 1
                warnings.warn(f"batch dropped ({type(e).__name__})")
                continue
            if rank == 0 and n % 5 == 0:
                bar(epoch, n, len(batches), loss, t0)
            time.sleep(0.03)
        sched.step()
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, {"loss": loss, "skipped": skipped})
        if rank == 0:
            sys.stderr.write("\n")
            mean = sum(p["loss"] for p in parts) / len(parts)
            print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
            torch.save(model.module.state_dict(), f"ecg-{epoch:02d}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
