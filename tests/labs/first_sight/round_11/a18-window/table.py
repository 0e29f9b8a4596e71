"""Sampling weights of all examples in one file that the workers of a node share: version, count, weights."""
import mmap
import os
import struct
import time

HEAD = struct.Struct("<qq")


def create(path, weights):
    with open(path + ".new", "wb") as f:
        f.write(HEAD.pack(0, len(weights)) + struct.pack(f"<{len(weights)}f", *weights))
    os.replace(path + ".new", path)


class WeightTable:
    def __init__(self, path, access=mmap.ACCESS_COPY):
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 0, access=access)

    @property
    def version(self):
        return HEAD.unpack_from(self.map)[0]

    def weights(self):
        _, n = HEAD.unpack_from(self.map)
        return struct.unpack_from(f"<{n}f", self.map, HEAD.size)

    def publish(self, weights):
        v, n = HEAD.unpack_from(self.map)
        struct.pack_into(f"<{n}f", self.map, HEAD.size, *weights)
        HEAD.pack_into(self.map, 0, v + 1, n)
        self.map.flush()

    def wait(self, version, poll=0.02):
        while self.version < version:
            time.sleep(poll)
        return self.weights()
