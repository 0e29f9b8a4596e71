import hashlib
import json
import os

import numpy as np


class Store:
    """Copies a shard to the local cache on first use and checks it on every use."""

    def __init__(self, cache, manifest, size=512, width=48):
        self.cache, self.size, self.width = cache, size, width
        self.sums = json.load(open(manifest))

    def _remote(self, name):
        seed = int(name.split("-")[1])
        return np.random.default_rng(seed).standard_normal((self.size, self.width)).astype("float32").tobytes()

    def open(self, name):
        path = os.path.join(self.cache, name)
        if not os.path.exists(path):
            with open(path + f".{os.getpid()}", "wb") as f:
                f.write(self._remote(name))
            os.replace(f.name, path)
        raw = open(path, "rb").read()
        if hashlib.sha1(raw).hexdigest() != self.sums[name]:
            os.unlink(path)
            raise IOError(f"{path}: {len(raw)} bytes, checksum differs; removed, will be fetched anew")
        return np.frombuffer(raw, "float32").reshape(self.size, self.width)
