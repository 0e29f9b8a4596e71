"""Serves rows to the trainers: a client says how many rows it has room for."""
import socket
import struct
import sys
import threading

import numpy as np

BATCH = 32
SHARDS = {0: 320, 1: 330, 2: 320}


def read_exact(conn, n):
    buf = b""
    while len(buf) < n:
        got = conn.recv(n - len(buf))
        if not got:
            raise ConnectionError
        buf += got
    return buf


def serve(conn):
    shard, = struct.unpack("<I", read_exact(conn, 4))
    rows = np.random.default_rng(shard).standard_normal((SHARDS[shard], 33), dtype=np.float32)
    room = 0
    try:
        while True:
            for at in range(0, len(rows), BATCH):
                while room < BATCH:
                    more, = struct.unpack("<I", read_exact(conn, 4))
                    room += more
                part = rows[at:at + BATCH]
                conn.sendall(struct.pack("<I", len(part)) + part.tobytes())
                room -= BATCH
    except (ConnectionError, OSError):
        conn.close()


def main():
    with socket.create_server(("127.0.0.1", int(sys.argv[1])), reuse_port=False) as s:
        while True:
            conn, _ = s.accept()
            threading.Thread(target=serve, args=(conn,), daemon=True).start()


if __name__ == "__main__":
    main()
