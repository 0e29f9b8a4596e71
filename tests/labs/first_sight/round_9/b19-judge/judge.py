"""Stand-in for the judge's HTTP API: POST /score {"texts": [...]} -> {"scores": [...]}; at most N requests a window."""
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, BUDGET, WINDOW = int(sys.argv[1]), 14, 45.0
lock = threading.Lock()
opened, used = time.time(), 0


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def do_POST(self):
        global opened, used
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            if time.time() - opened > WINDOW:
                opened, used = time.time(), 0
            used += 1
            left = WINDOW - (time.time() - opened) if used > BUDGET else 0
        if left:
            return self.reply(429, {"error": "rate limit"}, left)
        self.reply(200, {"scores": [1.0 - abs(len(set(t)) - 12) / 12 for t in body["texts"]]})

    def reply(self, code, data, retry=None):
        raw = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(raw)))
        if retry:
            self.send_header("Retry-After", str(int(retry) + 1))
        self.end_headers()
        self.wfile.write(raw)


class Server(ThreadingHTTPServer):
    parent = os.getppid()

    def service_actions(self):
        if os.getppid() != self.parent:      # the job is gone
            os._exit(0)


Server(("127.0.0.1", PORT), Api).serve_forever()
