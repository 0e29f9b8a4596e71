import json
import socket
import time


class Meters:
    def __init__(self, port):
        for _ in range(120):
            try:
                self.sock = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                time.sleep(0.5)
        self.file = self.sock.makefile("rw")
        self.round = 0
        self.reset()

    def reset(self):
        self.loss = self.correct = self.count = 0

    def update(self, loss, correct, count):
        self.loss += loss
        self.correct += correct
        self.count += count

    def exchange(self):
        self.round += 1
        if not self.count:
            return None
        self.file.write(json.dumps({"round": self.round, "sums": [self.loss, self.correct, self.count]}) + "\n")
        self.file.flush()
        loss, correct, count = json.loads(self.file.readline())
        self.reset()
        return loss / count, correct / count
