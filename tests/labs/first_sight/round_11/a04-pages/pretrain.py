import argparse
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from reader import DocumentReader


class Head(nn.Module):
    def __init__(self, vocab=300, width=64):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, vocab))

    def forward(self, bags):
        return self.mlp(torch.cat([self.emb(b[None]) for b in bags]))


def bar(i, n, loss):
    w = 30 * i // n
    sys.stderr.write(f"\r[{'#' * w}{'.' * (30 - w)}] {i}/{n} loss={loss:.3f}")
    sys.stderr.flush()


def worker(rank, args):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{args.port}", rank=rank, world_size=args.nproc)
    torch.manual_seed(1)
    model = DDP(Head())
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reader = DocumentReader(shard=rank, threads=4)
    for i in range(args.steps):
        docs = reader.batch(i, args.batch)
        bags = [d % 300 for d in docs]
        target = torch.stack([b.bincount(minlength=300).argmax() for b in bags])
        loss = F.cross_entropy(model(bags), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            bar(i + 1, args.steps, loss.item())
    dist.barrier()
    reader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--nproc", type=int, default=3)
    p.add_argument("--port", type=int, default=31505)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch", type=int, default=8)
    args = p.parse_args()
    t = time.time()
    mp.spawn(worker, args=(args,), nprocs=args.nproc)
    print(f"\nfinished in {time.time() - t:.0f} s")
