import numpy as np


class Buffer:
    def __init__(self, capacity, width):
        self.data = np.zeros((capacity, width), dtype="float32")
        self.size = self.head = 0

    def add(self, rows):
        for r in rows:
            self.data[self.head] = r
            self.head = (self.head + 1) % len(self.data)
            self.size = min(self.size + 1, len(self.data))

    def sample(self, n, rng):
        return self.data[rng.integers(0, self.size, n)]

    def state(self):
        return {"rows": self.data[:self.size].copy(), "head": self.head}
