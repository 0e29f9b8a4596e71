"""S3-style gateway: takes objects by PUT, with a request budget for every key prefix."""
import collections
import http.server
import os
import socketserver
import sys
import threading
import time

BUDGET = 45          # requests per prefix and hour
PARENT = os.getppid()
counts = collections.Counter()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        left = int(self.headers.get("Content-Length", 0))
        while left:
            left -= len(self.rfile.read(min(left, 65536)))
        prefix = self.path.split("/")[2]
        counts[prefix] += 1
        if counts[prefix] > BUDGET:
            body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            self.send_response(503)
        else:
            body = b""
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
with open(sys.argv[1] + ".tmp", "w") as f:
    f.write(str(server.server_address[1]))
os.replace(sys.argv[1] + ".tmp", sys.argv[1])
threading.Thread(target=server.serve_forever, daemon=True).start()
while os.getppid() == PARENT:
    time.sleep(1)
