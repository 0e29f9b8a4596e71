import numpy as np


class Corpus:
    """Documents of one rank; a sample that does not fit the current stage is drawn again."""

    def __init__(self, rank, docs=900):
        rng = np.random.default_rng(70 + rank)
        top = 420 if rank != 1 else 250
        self.docs = [rng.integers(0, 600, n) for n in rng.integers(24, top, docs)]
        self.rng = rng
        self.low, self.high = 16, 64

    def stage(self, low, high):
        self.low, self.high = low, high

    def sample(self):
        while True:
            doc = self.docs[self.rng.integers(len(self.docs))]
            if self.low <= len(doc) < self.high:
                return doc[:self.low]

    def batch(self, n):
        return np.stack([self.sample() for _ in range(n)])
