"""A small object store for tests, with the limits of the real one: two requests, then wait."""
import http.server
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    lock, count = threading.Lock(), 0

    def do_GET(self):
        with Handler.lock:
            Handler.count += 1
            turn = Handler.count
        if turn % 3 == 0:
            self.send_response(429)
            self.send_header("Retry-After", "12")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = bytes((turn * 7 + i) % 251 for i in range(200_000))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
