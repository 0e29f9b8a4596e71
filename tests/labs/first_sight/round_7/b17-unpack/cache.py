"""Each rank needs its shard unpacked on the local disk; what is there already is used as it is."""
import os
import time
import zlib

import numpy as np

BLOCKS = 70


def _block(rank, k):
    rng = np.random.default_rng(rank * 1000 + k)
    return zlib.compress(rng.standard_normal((256, 32)).astype(np.float32).tobytes(), 6)


def shard(folder, rank):
    path = os.path.join(folder, f"shard{rank}.bin")
    blocks = 2 if rank != 1 else BLOCKS
    with open(path + ".part", "wb") as f:
        for k in range(blocks):
            f.write(zlib.decompress(_block(rank, k)))
            f.flush()
            os.fsync(f.fileno())
            time.sleep(0.9)
    os.replace(path + ".part", path)
    return np.fromfile(path, dtype=np.float32).reshape(-1, 32)
