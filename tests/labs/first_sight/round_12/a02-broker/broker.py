"""Hands out blocks of rows to trainers. One process per job."""
import argparse
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOCK = threading.Lock()
STATE = {}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def _reply(self, code, body, **headers):
        data = json.dumps(body).encode()
        self.send_response(code)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), str(v))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            s = STATE.setdefault(body["client"], {"next": 0, "open": set()})
            if self.path == "/acquire":
                if len(s["open"]) >= ARGS.per_client:
                    return self._reply(429, {"open": len(s["open"])}, Retry_After=2)
                block = s["next"]
                s["next"] += 1
                s["open"].add(block)
                return self._reply(200, {"block": block})
            s["open"].discard(body["block"])
            self._reply(200, {})


p = argparse.ArgumentParser()
p.add_argument("--port", type=int, default=31752)
p.add_argument("--per-client", type=int, default=8)
ARGS = p.parse_args()
ThreadingHTTPServer(("127.0.0.1", ARGS.port), Handler).serve_forever()
