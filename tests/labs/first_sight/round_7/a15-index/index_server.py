"""Nearest neighbours of vectors:  POST /nearest {"vectors": [[...]], "k": 3}"""
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch

ITEMS = torch.nn.functional.normalize(torch.randn(3000, 16, generator=torch.Generator().manual_seed(0)), dim=1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        near = (torch.tensor(body["vectors"]) @ ITEMS.T).topk(body["k"], 1).indices.tolist()
        self._answer({"ids": near})

    def do_GET(self):
        self._answer({"items": ITEMS.tolist()})

    def _answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    torch.set_num_threads(1)
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
