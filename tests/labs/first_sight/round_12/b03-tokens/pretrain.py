import argparse
import contextlib
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from corpus import LANGS, documents

p = argparse.ArgumentParser()
p.add_argument("--tokens-per-update", type=int, default=4096)
p.add_argument("--docs", type=int, default=700)
p.add_argument("--epochs", type=int, default=5)
args = p.parse_args()


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(1000, d)
        self.mix = nn.Conv1d(d, d, 5, padding=4)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.head = nn.Linear(d, 1000)

    def forward(self, x):
        h = self.emb(x)
        h = h + self.mix(h.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return self.head(h + self.ff(h))


def evaluate(model, docs, world):
    model.eval()
    with torch.no_grad():
        losses = [lm_loss(model.module, d) for d in docs]
    model.train()
    mine = torch.stack([torch.stack(losses).mean(), torch.tensor(float(len(losses)))])
    parts = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine)
    return [round(float(q[0]), 3) for q in parts]


def lm_loss(model, doc):
    x = torch.tensor(doc)[None]
    return F.cross_entropy(model(x[:, :-1])[0], x[0, 1:])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    lang = list(LANGS)[rank]
    train = list(documents(lang, args.docs))
    heldout = list(documents(lang, 40))
    model = DistributedDataParallel(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    updates = 0
    for epoch in range(args.epochs):
        begun, seen = time.time(), 0
        for doc in train:
            seen += len(doc)
            full = seen >= args.tokens_per_update
            with contextlib.nullcontext() if full else model.no_sync():
                loss = lm_loss(model, doc) * len(doc) / args.tokens_per_update
                loss.backward()
            if full:
                opt.step()
                opt.zero_grad()
                updates, seen = updates + 1, 0
                if rank == 0:
                    sys.stdout.write(f"\r[{epoch}] update {updates} {time.time() - begun:.0f}s")
                    sys.stdout.flush()
        result = evaluate(model, heldout, world)
        if rank == 0:
            print(f"\nepoch {epoch}: held-out loss by language {result}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
