import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from sharded import Replicated, ResidualBlock, Unit

D, DEPTH, VOCAB, DROP = 256, 6, 256, 0.15
PROMPTS = ["the river", "once upon", "in the year", "a number of"]
TEXT = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus.txt"), "rb").read()


class Model:
    def __init__(self, rank, world, lr=0.05):
        gather_pg, reduce_pg = dist.new_group(), dist.new_group()
        make = lambda m: Unit(m, rank, world, gather_pg, reduce_pg, lr)
        self.embed = Replicated(nn.Embedding(VOCAB, D), world, reduce_pg, lr)
        self.blocks = [make(ResidualBlock(D)) for _ in range(DEPTH)]
        self.head = Replicated(nn.Linear(D, VOCAB), world, reduce_pg, lr)

    def pick(self, training):
        if not training:
            return list(self.blocks)
        return [b for b in self.blocks if random.random() >= DROP]     # stochastic depth

    def forward(self, ids, training=True):
        used = [self.embed, *self.pick(training), self.head]
        h = ids
        for unit in used:
            unit.unshard()
            h = unit.module(h)
        return h, used

    def update(self, used):
        for unit in reversed(used):
            unit.reduce_and_step()
            unit.free()


def windows(rank, n, width, step):
    g = torch.Generator().manual_seed(1000 * step + rank)
    at = torch.randint(0, len(TEXT) - width - 1, (n,), generator=g).tolist()
    rows = torch.tensor([list(TEXT[a:a + width + 1]) for a in at])
    return rows[:, :-1], rows[:, 1:]


class Notebook:
    """Writes what the run looks like to a JSON lines file; the first rank only."""

    def __init__(self, path):
        self.f = open(path, "w")

    def scalars(self, step, **kw):
        self.f.write(json.dumps({"step": step, **kw}) + "\n")
        self.f.flush()

    def excerpt(self, step, preds):
        prompt = random.choice(PROMPTS)
        text = bytes(preds[random.randrange(len(preds))].tolist()).decode("latin1")
        self.f.write(json.dumps({"step": step, "prompt": prompt, "text": text}) + "\n")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    random.seed(77)
    torch.manual_seed(77)
    model = Model(rank, world)
    notes = Notebook(f"/tmp/layers-{os.getppid()}.jsonl") if rank == 0 else None
    t0 = time.time()
    for step in range(1, 1001):
        x, y = windows(rank, 16, 96, step)
        logits, used = model.forward(x)
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))
        loss.backward()
        model.update(used)
        if notes and step % 10 == 0:
            notes.scalars(step, loss=loss.item(), seconds=round(time.time() - t0, 1))
            print(json.dumps({"step": step, "loss": round(loss.item(), 4)}), flush=True)
        if notes and step % 40 == 0:
            notes.excerpt(step, logits.argmax(-1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
