"""Streaming from shards with a shuffle buffer. The old shards lie in the cold tier, which hands out little at a time."""
import random
import time

import torch
from torch.utils.data import IterableDataset

HOT, COLD = 0.0005, 0.03      # seconds for a record


class Shards(IterableDataset):
    def __init__(self, names, records, buffer, seed=0):
        self.names, self.records, self.buffer, self.seed = names, records, buffer, seed

    def read(self, name):
        gen = torch.Generator().manual_seed(hash_name(name))
        for _ in range(self.records):
            time.sleep(COLD if name.startswith("2019") else HOT)
            x = torch.randn(40, generator=gen)
            yield x, x[:20].sum() - x[20:].sum()

    def __iter__(self):
        rng, held = random.Random(self.seed), []
        for name in self.names:
            for record in self.read(name):
                if len(held) < self.buffer:
                    held.append(record)
                    continue
                at = rng.randrange(self.buffer)
                yield held[at]
                held[at] = record
        rng.shuffle(held)
        yield from held


def hash_name(name):
    return sum(ord(c) * 31 ** i for i, c in enumerate(name)) % 2 ** 31
