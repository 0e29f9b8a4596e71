"""Takes JSON lines from the ranks over TCP, appends them to a file, answers each with `ok`."""
import argparse
import os
import socketserver
import threading


class Journal:
    def __init__(self, path, limit):
        self.path, self.limit = path, limit
        self.lock = threading.Lock()
        self.part = 0
        self.f = open(path, "ab")

    def write(self, line):
        with self.lock:
            self.f.write(line)
            self.f.flush()
            if self.f.tell() > self.limit:
                self.roll()

    def roll(self):
        with self.lock:
            self.f.close()
            self.part += 1
            os.rename(self.path, f"{self.path}.{self.part}")
            self.f = open(self.path, "ab")


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.server.journal.write(line)
            self.wfile.write(b"ok\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    parent = os.getppid()

    def service_actions(self):
        if os.getppid() != self.parent:      # the job is gone
            os._exit(0)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--port", type=int, required=True)
    ap.add_argument("--file", required=True)
    ap.add_argument("--roll-bytes", type=int, default=16384)
    a = ap.parse_args()
    server = Server(("127.0.0.1", a.port), Handler)
    server.journal = Journal(a.file, a.roll_bytes)
    server.serve_forever()
