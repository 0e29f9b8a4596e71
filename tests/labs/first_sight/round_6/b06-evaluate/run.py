import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class Retriever(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(128, 192), nn.ReLU(), nn.Linear(192, dim))
        self.doc = nn.Sequential(nn.Linear(128, 192), nn.ReLU(), nn.Linear(192, dim))

    def forward(self, q, d):
        return self.query(q) @ self.doc(d).t()


def pairs(gen, n):
    d = torch.randn(n, 128, generator=gen)
    return d + 0.7 * torch.randn(n, 128, generator=gen), d


def document_blocks(n, size, seed=1234):
    """The documents of the test collection, block by block; the store behind it is slow."""
    gen = torch.Generator().manual_seed(seed)
    for _ in range(n):
        time.sleep(0.9)
        yield torch.randn(size, 128, generator=gen)


@torch.no_grad()
def evaluate(model, queries=64, blocks=65):
    """Recall among all documents, exact."""
    q, own = pairs(torch.Generator().manual_seed(99), queries)
    query = model.query(q)
    best = query @ model.doc(own).t()
    at_home = best.diagonal().clone().unsqueeze(1)
    better = (best > at_home).sum(dim=1)
    for docs in document_blocks(blocks, 800):
        scores = query @ model.doc(docs).t()
        better += (scores > at_home).sum(dim=1)
    return float(np.mean(better.numpy() < 10))


def train(ddp, opt, steps, gen, rank, offset):
    for step in range(offset + 1, offset + steps + 1):
        q, d = pairs(gen, 64)
        logits = ddp(q, d)
        loss = nn.functional.cross_entropy(logits, torch.arange(64))
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if step % 25 == 0 and rank == 0:
            print(f"step={step} loss={loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Retriever()
    ddp = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    train(ddp, opt, 100, gen, rank, 0)
    if rank == 0:
        print("evaluating", flush=True)
        recall = evaluate(model)
        print(f"recall@10={recall:.3f}", flush=True)
    dist.barrier()
    train(ddp, opt, 100, gen, rank, 100)
    if rank == 0:
        torch.save(model.state_dict(), "retriever.pt")
        print("saved retriever.pt", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
