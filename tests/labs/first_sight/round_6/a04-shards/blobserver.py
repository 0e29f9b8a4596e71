"""Serves the shards of manifest.tsv with a rate limit for each client."""
import http.server
import os
import threading
import time


class Bucket:
    def __init__(self, rate, burst):
        self.rate, self.burst = rate, burst
        self.tokens, self.last = burst, time.monotonic()
        self.lock = threading.Lock()

    def take(self, n):
        while True:
            with self.lock:
                now = time.monotonic()
                self.tokens = min(self.burst, self.tokens + (now - self.last) * self.rate)
                self.last = now
                if self.tokens >= n:
                    self.tokens -= n
                    return
            time.sleep(0.05)


SIZES = dict(line.split() for line in open("manifest.tsv"))
BUCKETS = {}
GUARD = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.rsplit("/", 1)[-1]
        if name not in SIZES:
            self.send_error(404)
            return
        client = self.headers.get("X-Client", "?")
        with GUARD:
            bucket = BUCKETS.setdefault(client, Bucket(400_000, 512_000))
        size = int(SIZES[name])
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.flush()
        bucket.take(size)
        seed = sum(map(ord, name)) % 251
        self.wfile.write(bytes((seed + i) % 256 for i in range(1000)) * (size // 1000))

    def log_message(self, *a):
        pass


if __name__ == "__main__":
    srv = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    srv.daemon_threads = True
    with open("blob.port.tmp", "w") as f:
        f.write(str(srv.server_address[1]))
    os.replace("blob.port.tmp", "blob.port")
    srv.serve_forever()
