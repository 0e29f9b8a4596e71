import os
import urllib.request

import numpy as np


def local_copy(rank, cache):
    """The rank's part of the data set, from the cache if a run before has put it there."""
    os.makedirs(cache, exist_ok=True)
    path = os.path.join(cache, f"part-{rank}.bin")
    if not os.path.exists(path):
        port = int(open(os.path.join(cache, "store.port")).read())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/part-{rank}.bin") as r:
            data = r.read()
        with open(path + ".part", "wb") as f:
            f.write(data)
            os.fsync(f.fileno())
        os.replace(path + ".part", path)
    return np.memmap(path, dtype="uint8", mode="r")
