import json
import socket
import time


class Sink:
    def __init__(self, port):
        for _ in range(120):
            try:
                self.s = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.5)
        else:
            raise SystemExit("no metrics collector")
        self.r = self.s.makefile("rb")

    def log(self, **kw):
        self.s.sendall(json.dumps(kw).encode() + b"\n")
        self.r.readline()
