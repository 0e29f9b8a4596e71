"""Tokenises the corpus into SCRATCH/tokens.npy; takes a while on the real one."""
import os
import sys
import time

import numpy as np


def build(scratch, tokens=400_000):
    os.makedirs(scratch, exist_ok=True)
    rng = np.random.default_rng(5)
    parts = []
    for shard in range(8):
        words = rng.zipf(1.3, size=tokens // 8) % 1000
        parts.append(words.astype("uint16"))
        time.sleep(0.3)
    path = os.path.join(scratch, "tokens.npy")
    np.save(path + ".part.npy", np.concatenate(parts))
    os.replace(path + ".part.npy", path)
    return path


if __name__ == "__main__":
    print(build(sys.argv[1]))
