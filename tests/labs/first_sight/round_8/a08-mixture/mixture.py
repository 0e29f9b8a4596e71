import os
import random
import struct
from datetime import timedelta

import torch


class Mixture:
    """Token shards drawn from several sources. Rank 0 writes the index of a mixture, the others read it."""

    def __init__(self, root, store, rank):
        self.root, self.store, self.rank = root, store, rank

    def tag(self, sources):
        return f"{hash(tuple(sources)) & 0xffffffff:08x}"

    def build(self, sources, size, path):
        rng = random.Random(len(sources))
        with open(path + ".part", "wb") as f:
            for _ in range(size):
                f.write(struct.pack("<HI", rng.randrange(len(sources)), rng.randrange(1 << 20)))
        os.replace(path + ".part", path)

    def open(self, stage, sources, size):
        path = os.path.join(self.root, f"{stage}.idx")
        key = f"mixture/{stage}" if len(sources) == 1 else f"mixture/{stage}/{self.tag(sources)}"
        if self.rank == 0:
            self.build(sources, size, path)
            self.store.set(key, "ready")
        else:
            self.store.wait([key], timedelta(hours=12))
        raw = open(path, "rb").read()
        return [struct.unpack_from("<HI", raw, i * 6) for i in range(size)]


def sample(entries, rank, world, seed, n):
    rng = random.Random(seed * world + rank)
    picked = [rng.choice(entries) for _ in range(n)]
    x = torch.stack([torch.sin(torch.arange(24.) * (1 + s) + o % 97) for s, o in picked])
    return x[:, :-1], x[:, 1:]
