"""Object store for local runs: GET /<bucket>/<number> gives 256 token ids."""
import random
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GONE = {5011, 5042, 5077, 5101, 5118}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self):
        number = int(self.path.rsplit("/", 1)[1])
        if number in GONE:
            self.send_error(404)
            return
        rnd = random.Random(number)
        body = bytes(rnd.randrange(0, 64) for _ in range(256))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
