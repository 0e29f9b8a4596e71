"""User features over HTTP: served beside the first rank, asked for by the others."""
import http.client
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        split, lo, hi = self.path.strip("/").split("/")
        rows = []
        for i in range(int(lo), int(hi)):
            rng = random.Random(f"{split}{i}")
            rows.append([round(rng.gauss(0, 1), 3) for _ in range(12)])
        body = json.dumps(rows).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *a):
        pass


def start_server(port):
    server = HTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, name="features", daemon=True).start()
    return server


class Client:
    def __init__(self, port):
        self.conn = http.client.HTTPConnection("127.0.0.1", port)

    def rows(self, split, lo, hi):
        self.conn.request("GET", f"/{split}/{lo}/{hi}")
        return json.loads(self.conn.getresponse().read())
