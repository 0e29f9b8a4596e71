"""The object store as this job sees it: a GET with Range, at the bandwidth that the tenant has left."""
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

RATE = 26_000         # bytes a second on a cold object
SIZES = {"part-0.bin": 40_000, "part-1.bin": 1_900_000}


def content(name):
    rng = np.random.default_rng(len(name) + int(name[5]))
    return rng.integers(0, 200, SIZES[name], dtype="uint8").tobytes()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        data = content(self.path.strip("/"))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for a in range(0, len(data), RATE):
            self.wfile.write(data[a:a + RATE])
            time.sleep(1.0)

    def log_message(self, *a):
        pass


srv = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[1], "w") as f:
    print(srv.server_port, file=f)
srv.serve_forever()
