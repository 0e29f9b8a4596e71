"""Train on all ranks, score on rank 0 with the (slow, single-process) official scorer."""
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ROUNDS, STEPS = 2, 120


def official_score(model, n=45):
    """One document after the other, as the organisers' script does it."""
    model.eval()
    hits = 0
    with torch.no_grad():
        for i in range(n):
            g = torch.Generator().manual_seed(i)
            doc = torch.randn(200, 64, generator=g)
            hits += (model(doc).argmax(1) == doc[:, :5].argmax(1)).float().mean().item()
            time.sleep(0.9)  # rate of the scoring service
    model.train()
    return hits / n


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 5)))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    best = 0.0
    for rnd in range(ROUNDS):
        for _ in range(STEPS):
            time.sleep(0.12)
            x = torch.randn(32, 64, generator=gen)
            loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
            opt.zero_grad()
            loss.backward()
            opt.step()
        score = torch.zeros(1)
        if rank == 0:
            score[0] = official_score(model.module)
        dist.broadcast(score, src=0)
        if score.item() > best:
            best = score.item()
            if rank == 0:
                torch.save(model.module.state_dict(), "best.pt")
        if rank == 0:
            print(f"round {rnd}: score {score.item():.4f} (best {best:.4f})", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
