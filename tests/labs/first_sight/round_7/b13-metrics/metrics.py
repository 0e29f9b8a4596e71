"""Numbers of the run for the dashboard: GET / returns the last row as JSON."""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Metrics:
    def __init__(self):
        self.row = {}
        outer = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps(outer.row).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self.thread = threading.Thread(target=self.server.serve_forever, name="metrics")
        self.thread.start()

    def log(self, **row):
        self.row = row
