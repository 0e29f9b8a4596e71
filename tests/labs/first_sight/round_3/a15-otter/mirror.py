import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

BUSY = float(sys.argv[1])
up = time.monotonic()


class H(BaseHTTPRequestHandler):
    def do_GET(self):
        if time.monotonic() - up < BUSY:
            self.send_response(503)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        for _ in range(60):
            self.wfile.write(bytes(range(256)) * 16)
            self.wfile.flush()
            time.sleep(0.4)

    def log_message(self, *a):
        pass


s = HTTPServer(("127.0.0.1", 0), H)
with open("mirror.port.tmp", "w") as f:
    f.write(str(s.server_port))
import os

os.rename("mirror.port.tmp", "mirror.port")
threading.Timer(600, s.shutdown).start()
s.serve_forever()
