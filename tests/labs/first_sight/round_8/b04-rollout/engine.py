"""Stand-alone generation service: POST /generate {"prompts": [[...]], "n": 2}"""
import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_MODEL_LEN = 96
slots = threading.BoundedSemaphore(6)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self, code, body):
        raw = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self):
        self._answer(200, {"status": "ok"})

    def do_POST(self):
        req = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        slots.acquire()
        longest = max(len(p) for p in req["prompts"])
        if longest > MAX_MODEL_LEN:
            return self._answer(400, {"error": f"prompt of {longest} tokens exceeds {MAX_MODEL_LEN}"})
        time.sleep(0.15 + 0.002 * longest)
        out = [[random.randrange(500) for _ in range(24)] for p in req["prompts"] for _ in range(req["n"])]
        slots.release()
        self._answer(200, {"completions": out})

    def log_message(self, *a):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
