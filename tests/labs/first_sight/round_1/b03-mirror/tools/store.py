"""Minimal object store for the lab: PUT/GET /bucket/key. Spools to the volume in the background."""
import argparse, os, queue, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ap = argparse.ArgumentParser()
ap.add_argument("--root", default="store")
ap.add_argument("--port-file", required=True)
ap.add_argument("--volume-mb", type=int, default=18)
args = ap.parse_args()
spool = queue.Queue(maxsize=8)
volume = threading.Event()


def flusher():
    used = 0
    while True:
        path, chunk = spool.get()
        while used + len(chunk) > args.volume_mb << 20:
            volume.wait()          # volume is being extended by the operator
        with open(path, "ab") as f:
            f.write(chunk)
        used += len(chunk)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        path = os.path.join(args.root, self.path.strip("/").replace("/", "__"))
        open(path, "wb").close()
        while left:
            chunk = self.rfile.read(min(left, 1 << 19))
            left -= len(chunk)
            spool.put((path, chunk))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *a):
        pass


os.makedirs(args.root, exist_ok=True)
threading.Thread(target=flusher, daemon=True).start()
srv = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(args.port_file, "w") as f:
    f.write(str(srv.server_port))
srv.serve_forever()
