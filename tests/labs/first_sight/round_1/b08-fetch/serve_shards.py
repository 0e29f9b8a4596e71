import io, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import numpy as np

MISSING = {31, 37, 43, 49, 55, 61}


class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        i = int(self.path.rsplit("-", 1)[1].split(".")[0])
        if i in MISSING:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        buf = io.BytesIO()
        np.save(buf, np.random.default_rng(i).standard_normal((64, 33), dtype="float32"))
        self.send_response(200)
        self.send_header("Content-Length", str(buf.tell()))
        self.end_headers()
        self.wfile.write(buf.getvalue())

    def log_message(self, *a):
        pass


srv = ThreadingHTTPServer(("127.0.0.1", 0), H)
open(sys.argv[1] + ".tmp", "w").write(str(srv.server_port))
os.replace(sys.argv[1] + ".tmp", sys.argv[1])
srv.serve_forever()
