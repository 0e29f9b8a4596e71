import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from sandbox import passes

STEPS, EVERY, WIDTH = 90, 45, 160
PROBLEMS = json.load(open("problems.json"))


class ByteLM(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(256, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, 256)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def encode(text):
    raw = list(text.encode())[:WIDTH]
    return raw + [0] * (WIDTH - len(raw))


@torch.no_grad()
def likelihood(model, text):
    ids = torch.tensor([encode(text)])
    return -cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0).item()


def evaluate(model):
    """pass@3, and pass@1 of the candidate the model likes most."""
    any_, first = 0, 0
    for p in PROBLEMS:
        results = [passes(t, p["test"]) for t in p["tries"]]
        scores = [likelihood(model, t) for t in p["tries"]]
        any_ += any(results)
        first += results[scores.index(max(scores))]
    return first / len(PROBLEMS), any_ / len(PROBLEMS)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ddp = DDP(ByteLM())
    opt = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
    good = torch.tensor([encode(p["tries"][0]) for p in PROBLEMS])
    g = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        ids = good[torch.randint(len(good), (8,), generator=g)]
        loss = cross_entropy(ddp(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0 and rank == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.3f}", flush=True)
        if step % EVERY == 0:
            if rank == 0:
                t = time.time()
                one, three = evaluate(ddp.module)
                print(f"pass@1 {one:.3f} pass@3 {three:.3f} ({time.time() - t:.0f} s)", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
