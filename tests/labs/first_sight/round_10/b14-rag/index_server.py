"""Retrieval service of the training: passages that fit a query. Plain sockets, one thread a client."""
import json
import random
import socketserver
import sys

TOPICS = {
    "en": ["river", "engine", "harvest", "glacier", "violin", "market", "orbit", "enzyme"],
    "zh": ["河流", "引擎", "收获", "冰川", "小提琴", "市场", "轨道", "酶"],
}


def passages(query, k):
    rnd = random.Random(query["seed"])
    words = TOPICS[query["lang"]]
    return [{"id": rnd.randrange(10 ** 6), "text": " ".join(rnd.choice(words) for _ in range(30))} for _ in range(k)]


class Client(socketserver.StreamRequestHandler):
    def handle(self):
        while True:
            head = self.rfile.readline()
            if not head:
                return
            query = json.loads(self.rfile.read(int(head)))
            answer = {"hits": passages(query, query["k"])}
            size = len(json.dumps(answer))
            body = json.dumps(answer, ensure_ascii=False).encode("utf-8")
            self.wfile.write(b"%d\n" % size + body)
            self.wfile.flush()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Client) as srv:
        with open(sys.argv[1], "w") as f:
            f.write(f"{srv.server_address[1]}\n")
        srv.serve_forever()
