import os
import time

import numpy as np


class Shelf:
    """Shards on the archive tier: served at a few hundred kilobytes a second."""

    def __init__(self, folder, rate=400_000, chunk=32_768):
        self.folder, self.rate, self.chunk = folder, rate, chunk

    def fill(self, n, rows, width):
        os.makedirs(self.folder, exist_ok=True)
        for i in range(n):
            np.random.default_rng(i).standard_normal((rows, width)).astype("float32").tofile(self.path(i))

    def path(self, i):
        return os.path.join(self.folder, f"shard{i:03d}.f32")

    def read(self, i, width):
        got = []
        with open(self.path(i), "rb", buffering=0) as f:
            while piece := f.read(self.chunk):
                got.append(piece)
                time.sleep(len(piece) / self.rate)
        return np.frombuffer(b"".join(got), "float32").reshape(-1, width)
