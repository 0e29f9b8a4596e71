"""Serves float32 shards; a shard that is cold is first brought back from tape (503 until it is there)."""
import http.server
import random
import struct
import sys
import time

RECALL = {"west/2": 75}
asked = {}


def shard(name):
    rng = random.Random(name)
    rows = []
    for _ in range(1500):
        x = [rng.gauss(0, 1) for _ in range(20)]
        rows.append(struct.pack("<21f", *x, sum(x[:5]) / 2))
    return b"".join(rows)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.strip("/")
        first = asked.setdefault(name, time.monotonic())
        if time.monotonic() - first < RECALL.get(name, 0):
            self.send_response(503)
            self.send_header("Retry-After", "20")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = shard(name)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
