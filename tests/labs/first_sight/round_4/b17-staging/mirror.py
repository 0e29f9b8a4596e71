"""Mirror of the data set with a limit per client, like the one of the site."""
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SIZE, PIECE, PAUSE = 9 << 20, 64 << 10, 0.55


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = random.Random(self.path).randbytes(SIZE)
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        for i in range(0, SIZE, PIECE):
            self.wfile.write(body[i:i + PIECE])
            time.sleep(PAUSE)


if __name__ == "__main__":
    srv = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with open(sys.argv[1], "w") as f:
        f.write("http://127.0.0.1:%d" % srv.server_port)
    srv.serve_forever()
