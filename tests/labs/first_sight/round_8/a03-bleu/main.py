import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from scoring import minimum_bayes_risk

VOCAB, LEN, STEPS, EVAL_EVERY, EVAL_SECONDS = 200, 20, 240, 120, 45


class Seq2Seq(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.enc = nn.GRU(d, d, batch_first=True)
        self.dec = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, src, tgt):
        h = self.enc(self.emb(src))[1]
        return self.out(self.dec(self.emb(tgt), h)[0])


@torch.no_grad()
def evaluate(model, seed):
    """Minimum-Bayes-risk decoding on rank 0; sentences until the time budget is used."""
    model.eval()
    rng = random.Random(seed)
    end, scores = time.monotonic() + EVAL_SECONDS, []
    while time.monotonic() < end:
        src = torch.randint(0, VOCAB, (1, LEN))
        logits = model.module(src, src)[0]
        candidates = [torch.distributions.Categorical(logits=logits).sample().tolist() for _ in range(24)]
        scores.append(minimum_bayes_risk(candidates)[1])
    model.train()
    return sum(scores) / len(scores), len(scores)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(Seq2Seq())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        src = torch.randint(0, VOCAB, (16, LEN), generator=gen)
        tgt = src.flip(1)
        loss = nn.functional.cross_entropy(model(src, tgt).flatten(0, 1), src.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % EVAL_EVERY == 0:
            if rank == 0:
                score, n = evaluate(model, step)
                print(f"{step}\t{loss.item():.3f}\tMBR {score:.4f} ({n} sentences)", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
