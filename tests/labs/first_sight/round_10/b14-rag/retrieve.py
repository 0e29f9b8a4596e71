import json
import socket


class Retriever:
    def __init__(self, port, k=4):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.f = self.sock.makefile("rwb")
        self.k = k

    def __call__(self, seed, lang):
        q = json.dumps({"seed": seed, "lang": lang, "k": self.k}).encode()
        self.f.write(b"%d\n" % len(q) + q)
        self.f.flush()
        size = int(self.f.readline())
        return json.loads(self.f.read(size))["hits"]
