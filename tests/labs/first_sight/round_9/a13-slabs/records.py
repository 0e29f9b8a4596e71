import os
import struct
import threading
import queue
import zlib

import torch

from slabs import Slabs

DIM = 64


def write_shard(path, n, seed, block):
    """Writes n rows, each with its length and checksum, as the exporter does; the older one
    writes blocks and ends each with a zero word."""
    g = torch.Generator().manual_seed(seed)
    with open(path + ".tmp", "wb") as f:
        for i in range(n):
            body = torch.randn(DIM, generator=g).numpy().tobytes()
            crc = zlib.crc32(body)
            if block and i % block == block - 1:
                body = body[:-4] + b"\0\0\0\0"
            f.write(struct.pack("<II", len(body), crc) + body)
    os.replace(path + ".tmp", path)


class Reader:
    def __init__(self, path, batch=8, slabs=12):
        self.path, self.batch = path, batch
        self.slabs = Slabs(slabs, (batch, DIM))
        self.ready = queue.Queue(4)
        self.skipped = 0
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    def _fill(self, f, slab):
        for row in range(self.batch):
            head = f.read(8)
            if len(head) < 8:
                f.seek(0)
                head = f.read(8)
            n, crc = struct.unpack("<II", head)
            body = f.read(n)
            if zlib.crc32(body) != crc:
                return False
            slab[row] = torch.frombuffer(bytearray(body), dtype=torch.float32)
        return True

    def _read(self):
        with open(self.path, "rb") as f:
            while True:
                slab = self.slabs.take()
                if not self._fill(f, slab):
                    self.skipped += 1
                    continue
                self.ready.put(slab)

    def next(self):
        slab = self.ready.get()
        x = slab.clone()
        self.slabs.give(slab)
        return x
