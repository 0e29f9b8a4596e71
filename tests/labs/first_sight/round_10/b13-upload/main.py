import argparse
import os
import sys
import time
import uuid

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

from catalog import Catalog
from uploader import Uploader


class Recommender(nn.Module):
    """Embedding tables are split over the ranks by row, the rest is shared."""

    def __init__(self, rows, dim, rank, world):
        super().__init__()
        self.rank, self.world = rank, world
        g = torch.Generator().manual_seed(rank)
        self.table = nn.Parameter(torch.randn(rows // world, dim, generator=g) * 0.05)
        torch.manual_seed(0)
        self.top = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def lookup(self, ids):
        mine = (ids % self.world) == self.rank
        e = self.table[(ids // self.world) * mine] * mine[..., None]
        return e.sum(1)


def step_fn(model, opt, gen, rows):
    ids = torch.randint(0, rows, (64, 20), generator=gen)
    label = ((ids.float().mean(1) > rows / 2).float())
    part = model.lookup(ids)
    whole = part.detach().clone()
    dist.all_reduce(whole)
    whole.requires_grad_(True)
    loss = nn.functional.binary_cross_entropy_with_logits(model.top(whole).squeeze(1), label)
    opt.zero_grad()
    loss.backward()
    part.backward(whole.grad)
    opt.step()
    return loss.item()


def save(model, step, rank, args, catalog, uploader):
    name = f"table-{step:05d}-{rank}.npy"
    path = os.path.join(args.run, name)
    time.sleep(0.3 * rank)                    # not all at the disk at once
    with catalog.locked():
        np.save(path, model.table.detach().numpy())
        catalog.add(file=name, step=step, rank=rank, rows=len(model.table))
        if rank == 0 and step >= args.upload_from:
            uploader.add(path)


def train(rank, args):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(args.port))
    dist.init_process_group("gloo", rank=rank, world_size=args.world)
    torch.set_num_threads(1)
    model = Recommender(args.rows, 32, rank, args.world)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    catalog, uploader = Catalog(args.run), Uploader(os.path.join(args.run, "bucket"))
    gen = torch.Generator().manual_seed(42)
    for step in range(1, args.steps + 1):
        loss = step_fn(model, opt, gen, args.rows)
        if step % 100 == 0:
            sys.stdout.write(f"rank{rank} {step} {loss:.5f}\n")
            sys.stdout.flush()
        if step % args.save_every == 0:
            save(model, step, rank, args, catalog, uploader)
    dist.barrier()
    uploader.close()
    if rank == 0:
        print(f"{len(catalog.entries())} files in the catalogue")
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--world", type=int, default=3)
    ap.add_argument("--port", type=int, default=31415)
    ap.add_argument("--rows", type=int, default=60_000)
    ap.add_argument("--steps", type=int, default=20_000)
    ap.add_argument("--save-every", type=int, default=250)
    ap.add_argument("--upload-from", type=int, default=500)
    ap.add_argument("--run", default=None)
    args = ap.parse_args()
    args.run = args.run or os.path.join("runs", uuid.uuid4().hex[:8])
    os.makedirs(args.run)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    mp.spawn(train, args=(args,), nprocs=args.world)
