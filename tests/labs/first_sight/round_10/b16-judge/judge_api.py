"""Stands in for the judge model's API: answers slowly and limits the rate (429, Retry-After)."""
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WINDOW, ALLOWED = 12.0, 4
lock, calls = threading.Lock(), []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        now = time.monotonic()
        with lock:
            calls[:] = [c for c in calls if now - c < WINDOW]
            wait = 0 if len(calls) < ALLOWED else WINDOW - (now - calls[0])
            if not wait:
                calls.append(now)
        if wait:
            self.send_response(429)
            self.send_header("Retry-After", f"{wait:.1f}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        time.sleep(0.8)
        out = json.dumps({"win": sum(body["a"]) % 97 > sum(body["b"]) % 97}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    def log_message(self, *a):
        pass


srv = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(srv.server_port, flush=True)
srv.serve_forever()
