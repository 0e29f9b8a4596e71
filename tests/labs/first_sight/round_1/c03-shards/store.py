"""Object store in front of the corpus: GET /shard/N gives JSON lines."""
import json
import random
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        n = int(self.path.rsplit("/", 1)[1])
        r = random.Random(n)
        rows = [json.dumps({"x": [r.random() for _ in range(16)], "y": r.random()}) for _ in range(64)]
        body = ("\n".join(rows) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if n == 21:
            # a backend of the store that went away in the middle of an object
            self.wfile.write(body[:len(body) // 2])
            self.wfile.flush()
            threading.Event().wait()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[1], "w") as f:
    f.write(str(server.server_address[1]))
server.serve_forever()
