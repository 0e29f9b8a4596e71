import os
import time
import threading

import numpy as np

PER_SHARD = 480


def path_of(k):
    return os.path.join(os.environ["NODE_SCRATCH"], f"part-{k:05d}.npy")


def pack(k):
    """Tokenize and pack one part of the corpus into the scratch directory."""
    rng = np.random.default_rng(k)
    rows = []
    for _ in range(0, PER_SHARD, 40):
        rows.append(rng.integers(0, 1000, size=(40, 65), dtype=np.int32))
        time.sleep(0.1)
    np.save(path_of(k) + ".part.npy", np.concatenate(rows))
    os.rename(path_of(k) + ".part.npy", path_of(k))


class Packer(threading.Thread):
    """Keeps some parts ahead of the training."""

    def __init__(self, first, count):
        super().__init__(daemon=True)
        self.todo = range(first, count)

    def run(self):
        for k in self.todo:
            pack(k)


def rows(count, rank, world, batch):
    for k in range(count):
        while not os.path.exists(path_of(k)):
            time.sleep(1)
        part = np.load(path_of(k), mmap_mode="r")[rank::world]
        for i in range(0, len(part) - batch + 1, batch):
            yield k, part[i:i + batch]


if __name__ == "__main__":
    pack(0)
