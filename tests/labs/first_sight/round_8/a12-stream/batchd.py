"""Serves batches over TCP, one thread per client; a client gets at most `window` batches ahead of its acks."""
import random
import socket
import struct
import sys
import threading

import numpy as np


class Session:
    def __init__(self, conn, window):
        self.conn = conn
        self.credit = window
        self.cond = threading.Condition()
        self.shard = struct.unpack("<I", conn.recv(4))[0]

    def acks(self):
        while True:
            data = self.conn.recv(64)
            if not data:
                break
            with self.cond:
                self.credit += len(data)
                self.cond.notify()

    def serve(self):
        threading.Thread(target=self.acks, daemon=True).start()
        rng = random.Random(self.shard)
        gen = np.random.default_rng(self.shard)
        while True:
            with self.cond:
                self.cond.wait_for(lambda: self.credit > 0)
                self.credit -= 1
            n = rng.choice([16, 24, 32])
            # recordings of the field units are often too quiet to be of use
            level = 0.02 if self.shard == 1 and rng.random() < 0.12 else 1.0
            x = (gen.standard_normal((n, 40)) * level).astype("<f4")
            self.conn.sendall(struct.pack("<I", n) + x.tobytes())


def main(port, window):
    srv = socket.create_server(("127.0.0.1", port), reuse_port=False)
    while True:
        conn, _ = srv.accept()
        threading.Thread(target=Session(conn, window).serve, daemon=True).start()


main(int(sys.argv[1]), int(sys.argv[2]))
