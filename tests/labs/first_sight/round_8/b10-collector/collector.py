"""Takes JSON lines from trainers and keeps them in files of bounded size."""
import logging
import os
import queue
import socketserver
import sys
import threading

LIMIT = 4_000_000


class Store(threading.Thread):
    def __init__(self, folder):
        super().__init__(daemon=True)
        self.lines = queue.Queue(maxsize=16)
        self.path = os.path.join(folder, "current.jsonl")
        self.old = os.path.join(folder, "archive", "0001.jsonl")

    def run(self):
        out = open(self.path, "wb")
        while True:
            out.write(self.lines.get())
            if out.tell() > LIMIT:
                out.close()
                os.rename(self.path, self.old)
                out = open(self.path, "wb")


class Feed(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.server.store.lines.put(line)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


if __name__ == "__main__":
    logging.basicConfig(filename=os.path.join(sys.argv[2], "collector.log"))
    threading.excepthook = lambda a: logging.error("%s: %s", a.thread.name, a.exc_value)
    with Server(("127.0.0.1", int(sys.argv[1])), Feed) as s:
        s.store = Store(sys.argv[2])
        s.store.start()
        s.serve_forever()
