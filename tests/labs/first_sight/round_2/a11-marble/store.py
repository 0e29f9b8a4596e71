"""Object store for a test on one machine: shards by number, each client with its share of the line."""
import http.server
import threading
import zlib


class Share:
    def __init__(self, size):
        self.left, self.more = size, threading.Condition()

    def take(self, n):
        with self.more:
            while self.left < n:
                self.more.wait()
            self.left -= n

    def give(self, n):
        with self.more:
            self.left += n
            self.more.notify_all()


SHARES = {"rank0": Share(40_000_000), "rank1": Share(3_100_000)}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        share = SHARES[self.headers["X-Client"]]
        number = int(self.path.rsplit("/", 1)[1])
        size = 150_000 + number * 7919 % 20_000 // 4 * 4
        body = bytes(zlib.crc32(b"%d" % (number * 1000 + i)) & 0xFF for i in range(1000)) * (size // 1000)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for at in range(0, len(body), 25_000):
            share.take(25_000)
            self.wfile.write(body[at:at + 25_000])

    def log_message(self, *args):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/shards"
