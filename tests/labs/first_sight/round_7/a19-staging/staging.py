"""Local copy of a rank's part of the data."""
import hashlib
import os
import time

import numpy as np

CHUNK = 8192


def remote(part, size):
    """The archive as it comes from the share, in chunks."""
    rng = np.random.default_rng(part)
    for _ in range(size // CHUNK):
        yield rng.integers(0, 255, CHUNK, dtype=np.uint8).tobytes()


def stage(folder, part, size, latency):
    path = os.path.join(folder, f"part{part}.bin")
    digest = hashlib.sha256()
    with open(path, "wb") as f:
        for chunk in remote(part, size):
            time.sleep(latency)
            digest.update(chunk)
            f.write(chunk)
    return path, digest.hexdigest()
