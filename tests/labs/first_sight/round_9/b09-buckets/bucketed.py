import random

import torch


class Bucketed:
    """Every rank owns some length buckets, so that a batch needs little padding."""

    EDGES = [16, 32, 48, 64, 96, 128, 160, 192]

    def __init__(self, docs, rank, world):
        self.rng = random.Random(100 + rank)
        self.buckets = {e: [] for e in self.EDGES}
        for d in docs:
            self.buckets[next(e for e in self.EDGES if len(d) <= e)].append(d)
        half = (len(self.EDGES) + world - 1) // world
        self.mine = self.EDGES[rank * half:(rank + 1) * half]

    def batch(self, tokens, limit):
        while True:
            edge = self.rng.choice(self.mine)
            if edge > limit:
                continue
            rows = self.rng.choices(self.buckets[edge], k=max(1, tokens // edge))
            out = torch.zeros(len(rows), edge, dtype=torch.long)
            for r, d in zip(out, rows):
                r[:len(d)] = torch.tensor(d)
            return out
