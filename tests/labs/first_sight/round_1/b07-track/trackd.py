"""Lab tracking server: POST /api/runs/<id>/points, answers 429 above the project's quota."""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

QUOTA = 120
seen = 0


class H(BaseHTTPRequestHandler):
    def do_POST(self):
        global seen
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen += len(body["points"])
        ok = seen <= QUOTA
        out = json.dumps({"ok": ok, "detail": None if ok else "ingest quota exceeded"}).encode()
        self.send_response(200 if ok else 429)
        if not ok:
            self.send_header("Retry-After", "2")
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    def log_message(self, *a):
        pass


srv = ThreadingHTTPServer(("127.0.0.1", 0), H)
open(sys.argv[1], "w").write(str(srv.server_port))
srv.serve_forever()
