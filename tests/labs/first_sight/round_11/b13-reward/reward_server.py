"""Reward model over HTTP: POST /score {"texts": [[int, ...], ...]} -> [float, ...]"""
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scores = [len(set(t)) / len(t) - 0.01 * sum(a == b for a, b in zip(t, t[1:])) for t in body["texts"]]
        data = json.dumps(scores).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
