import os
import struct

import numpy as np

MAGIC = b"TSR1"


class Shard:
    """header | index of (offset, length) | records: u8 label, f32 window"""

    def __init__(self, path):
        self.raw = open(path, "rb").read()
        magic, count = struct.unpack_from("<4sI", self.raw, 0)
        if magic != MAGIC:
            raise ValueError(f"{path}: not a shard")
        self.index = [struct.unpack_from("<II", self.raw, 8 + 8 * i) for i in range(count)]

    def __len__(self):
        return len(self.index)

    def read(self, i):
        off, length = self.index[i]
        label = self.raw[off]
        window = np.frombuffer(self.raw, dtype="<f4", count=(length - 1) // 4, offset=off + 1)
        return label, window


def shards(folder):
    return sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".tsr"))
