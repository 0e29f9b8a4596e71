import random

import torch


class Source:
    """Sequences of one rank; `state` goes into the checkpoint."""

    def __init__(self, rank, n=1500):
        self.rank = rank
        self.rng = random.Random(rank)
        self.left = n - 300 * rank      # shards are not of one size
        self.refill = None

    def more(self):
        while True:
            yield [self.rng.random() for _ in range(20)]

    def __next__(self):
        if self.left > 0:
            self.left -= 1
            return [self.rng.gauss(0, 1) for _ in range(20)]
        if self.refill is None:
            self.refill = self.more()
        return next(self.refill)

    def state(self):
        return {k: v for k, v in vars(self).items() if k != "rng"} | {"rng": self.rng.getstate()}


def batch(source, n):
    x = torch.tensor([next(source) for _ in range(n)])
    return x, (x ** 2).mean(1, keepdim=True)
