import json
import os
import random
import time

import torch
from filelock import SoftFileLock

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ.get("TOKEN_CACHE", os.path.join(HERE, "cache"))


def pack(length, rows=640, vocab=200):
    r = random.Random(length)
    out = []
    for _ in range(rows):
        start = r.randrange(vocab)
        out.append([(start + 3 * k) % vocab for k in range(length)])
    return out


def packed_dataset(length):
    """Rows of `length` tokens, packed once and kept in the cache folder."""
    os.makedirs(CACHE, exist_ok=True)
    path = os.path.join(CACHE, f"packed-{length}.json")
    # several experiments share the folder (NFS, so no flock)
    with SoftFileLock(path + ".lock"):
        if not os.path.exists(path):
            rows = pack(length)
            tmp = f"{path}.{os.getpid()}"
            with open(tmp, "w") as f:
                json.dump(rows, f)
            os.replace(tmp, path)
            time.sleep(1)
        with open(path) as f:
            return torch.tensor(json.load(f))
