"""Receives histograms of weights and gradients, writes a summary per tag."""
import json
import os
import queue
import socket
import sys
import threading


class Writer(threading.Thread):
    def __init__(self, inbox, path):
        super().__init__(name="writer", daemon=True)
        self.inbox, self.out = inbox, open(path, "a", buffering=1)

    def run(self):
        while True:
            rec = json.loads(self.inbox.get())
            width = (rec["hi"] - rec["lo"]) / len(rec["bins"])
            mode = rec["lo"] + width * rec["bins"].index(max(rec["bins"]))
            self.out.write(json.dumps({"step": rec["step"], "tag": rec["tag"], "mode": mode,
                                       "resolution": 1.0 / width}) + "\n")


def receive(conn, inbox):
    with conn, conn.makefile("rb") as f:
        for line in f:
            inbox.put(line)


def main(folder):
    inbox = queue.Queue(maxsize=8)
    Writer(inbox, os.path.join(folder, "histograms.jsonl")).start()
    srv = socket.create_server(("127.0.0.1", 0))
    with open(os.path.join(folder, "collector.port"), "w") as f:
        f.write(str(srv.getsockname()[1]))
    while True:
        conn, _ = srv.accept()
        threading.Thread(target=receive, args=(conn, inbox), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
