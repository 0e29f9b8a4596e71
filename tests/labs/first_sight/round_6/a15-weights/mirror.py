"""A small file mirror behind a thin line."""
import http.server
import os
import random
import time

RATE = 120_000
SIZE = 5_400_000


class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        rng = random.Random(20)
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        sent = 0
        while sent < SIZE:
            n = min(30_000, SIZE - sent)
            self.wfile.write(rng.randbytes(n))
            self.wfile.flush()
            sent += n
            time.sleep(n / RATE)

    def log_message(self, *args):
        pass


srv = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
with open("mirror.addr.part", "w") as f:
    f.write("http://127.0.0.1:%d" % srv.server_address[1])
os.replace("mirror.addr.part", "mirror.addr")
srv.serve_forever()
