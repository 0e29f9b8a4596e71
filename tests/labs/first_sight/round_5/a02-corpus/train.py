import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import prepare

CACHE = "cache/tokens.json"
MERGES = 180
DOCS = 7500
CTX = 32


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    if rank == 0:
        print("preparing corpus", flush=True)
        os.makedirs("cache", exist_ok=True)
        if not os.path.exists(CACHE):
            prepare.build(CACHE, DOCS, MERGES)
    dist.barrier()
    with open(CACHE) as f:
        data = json.load(f)
    tokens = torch.tensor(data["tokens"])
    torch.manual_seed(0)
    model = DDP(TinyLM(256 + len(data["merges"])))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, 121):
        start = torch.randint(0, len(tokens) - CTX - 1, (16,), generator=gen)
        batch = torch.stack([tokens[s:s + CTX + 1] for s in start])
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step:4d} | loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
