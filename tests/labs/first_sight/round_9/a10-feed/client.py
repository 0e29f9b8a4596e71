import socket
import struct
import time

import numpy as np
import torch


class Feed:
    def __init__(self, port, shard, room=160):
        for _ in range(120):
            try:
                self.conn = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.5)
        self.conn.sendall(struct.pack("<I", shard))
        self._grant(room)

    def _grant(self, n):
        self.conn.sendall(struct.pack("<I", n))

    def _exact(self, n):
        buf = bytearray()
        while len(buf) < n:
            got = self.conn.recv(n - len(buf))
            if not got:
                raise EOFError("the feeder is gone")
            buf += got
        return bytes(buf)

    def next(self):
        n, = struct.unpack("<I", self._exact(4))
        rows = np.frombuffer(self._exact(n * 33 * 4), dtype=np.float32).reshape(n, 33).copy()
        self._grant(n)
        rows = torch.from_numpy(rows)
        return rows[:, :32], rows[:, 32:]
