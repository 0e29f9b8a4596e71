"""Reward model behind HTTP: POST /score {"samples": [[ids]...]} -> {"scores": [...]}"""
import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np

rng = np.random.default_rng(7)
EMBED = rng.normal(size=(256, 32))
HEAD = rng.normal(size=(32,))


def score(ids):
    h = np.tanh(EMBED[np.asarray(ids) % 256].mean(axis=0))
    return float(h @ HEAD)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        n = int(self.headers["Content-Length"])
        req = json.loads(self.rfile.read(n))
        scores = [score(s) for s in req["samples"]]
        time.sleep(0.004 * len(scores))          # the real model takes about this long per sample
        body = json.dumps({"scores": scores}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, fmt, *args):
        print(time.strftime("%H:%M:%S"), self.client_address[1], fmt % args, flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--port-file", required=True)
    args = ap.parse_args()
    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    with open(args.port_file + ".new", "w") as f:
        f.write(str(httpd.server_port))
    os.replace(args.port_file + ".new", args.port_file)
    httpd.serve_forever()
