import random
import time

import torch
from torch.utils.data import IterableDataset


class Shuffled(IterableDataset):
    """Samples of a slow store, shuffled in a buffer that is filled before the first comes out."""

    def __init__(self, rank, sources, capacity, latency):
        self.rank = rank
        self.sources = sources
        self.capacity = capacity
        self.latency = latency

    def read(self):
        rng = random.Random(self.rank)
        block = 0
        while True:
            time.sleep(self.latency)
            source = rng.choice(self.sources)
            g = torch.Generator().manual_seed(block * 64 + self.rank)
            x = torch.randn(64, 40, generator=g)
            for row in x:
                yield row, source
            block += 1

    def __iter__(self):
        rng = random.Random(self.rank + 1)
        buffer = []
        for sample in self.read():
            if len(buffer) < self.capacity:
                buffer.append(sample)
                continue
            i = rng.randrange(self.capacity)
            yield buffer[i]
            buffer[i] = sample
