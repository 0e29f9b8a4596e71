"""The learner hands out its weights over HTTP; the generator fetches them when it likes."""
import io
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


class WeightServer:
    def __init__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                with outer.lock:
                    blob = outer.blob
                self.send_response(200)
                self.send_header("Content-Length", str(len(blob)))
                self.end_headers()
                self.wfile.write(blob)

            def log_message(self, *a):
                pass

        self.lock, self.blob = threading.Lock(), b""
        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_port}/weights"
        threading.Thread(target=self.httpd.serve_forever, daemon=True, name="weights").start()

    def publish(self, module):
        buf = io.BytesIO()
        torch.save(module.state_dict(), buf)
        with self.lock:
            self.blob = buf.getvalue()


def fetch(url):
    with urllib.request.urlopen(url) as r:
        return torch.load(io.BytesIO(r.read()), weights_only=True)
