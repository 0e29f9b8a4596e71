"""A small model registry; keeps the artefacts of the last runs in cold storage."""
import argparse
import io
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


class Handler(BaseHTTPRequestHandler):
    asked = {}

    def log_message(self, *args):
        pass

    def do_GET(self):
        name = self.path.rsplit("/", 1)[-1]
        first = self.asked.setdefault(name, time.time())
        if time.time() - first < ARGS.thaw:
            self.send_response(503)
            self.send_header("Retry-After", "5")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        buf = io.BytesIO()
        torch.manual_seed(len(name))
        torch.save(torch.randn(64, 384), buf)
        self.send_response(200)
        self.send_header("Content-Length", str(buf.tell()))
        self.end_headers()
        self.wfile.write(buf.getvalue())


p = argparse.ArgumentParser()
p.add_argument("--port", type=int, default=31757)
p.add_argument("--thaw", type=float, default=65)
ARGS = p.parse_args()
ThreadingHTTPServer(("127.0.0.1", ARGS.port), Handler).serve_forever()
