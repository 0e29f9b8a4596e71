"""The labelling service of the other team: so many labels a minute, then 503 with Retry-After."""
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUDGET, PAUSE = 600, 62
used, until = 0, 0.0


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        global used, until
        items = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        now = time.monotonic()
        if now >= until and used + len(items) > BUDGET:
            until, used = now + PAUSE, 0
        if now < until:
            self.send_response(503)
            self.send_header("Retry-After", "13")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        used += len(items)
        data = json.dumps([sum(i) % 3 for i in items]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[1], "w") as f:
    f.write(str(server.server_address[1]))
server.serve_forever()
