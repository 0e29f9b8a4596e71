"""Teacher embeddings over HTTP: POST /embed with a JSON list of ids, answer: a JSON list of rows."""
import argparse
import json
import math
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

WIDTH = 16


def row(i):
    return [round(math.sin(i * (k + 1) * 0.37), 5) for k in range(WIDTH)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        ids = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps([row(i) for i in ids]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def follow(parent):
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(0)


p = argparse.ArgumentParser()
p.add_argument("--port-file", required=True)
args = p.parse_args()
server = HTTPServer(("127.0.0.1", 0), Handler)
with open(args.port_file, "w") as f:
    f.write(str(server.server_port))
threading.Thread(target=follow, args=(os.getppid(),), daemon=True).start()
server.serve_forever()
