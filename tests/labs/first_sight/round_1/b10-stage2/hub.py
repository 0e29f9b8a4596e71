import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SIZE, RATE = 9 << 20, 100 << 10      # a far mirror


class H(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        chunk, sent = bytes(range(250)) * 16, 0
        while sent < SIZE:
            part = chunk[: SIZE - sent]
            self.wfile.write(part)
            sent += len(part)
            time.sleep(len(part) / RATE)

    def log_message(self, *a):
        pass


srv = ThreadingHTTPServer(("127.0.0.1", 0), H)
open(sys.argv[1], "w").write(f"{srv.server_port}\n")
srv.serve_forever()
