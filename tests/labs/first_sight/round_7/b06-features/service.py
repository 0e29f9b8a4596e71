"""Feature service: answers ids with vectors. One JSON line a request, raw float32 as the answer."""
import json
import socketserver
import sys

import numpy as np

DIM = 64


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            ids = np.array(json.loads(line)["ids"], dtype=np.int64)
            grid = np.arange(DIM)[None, :] * (ids[:, None] % 17 + 1) * 0.1
            self.wfile.write(np.sin(grid).astype(np.float32).tobytes())


class Server(socketserver.TCPServer):
    allow_reuse_address = True


if __name__ == "__main__":
    with Server(("127.0.0.1", int(sys.argv[1])), Handler) as server:
        server.serve_forever()
