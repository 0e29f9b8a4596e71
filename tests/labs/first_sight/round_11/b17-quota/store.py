"""Writes to the shared store at the rate that our quota allows: a bucket of tokens, and fsync after each block."""
import os
import time


class QuotaFile:
    def __init__(self, path, rate, block=64 * 1024):
        self.f = open(path, "wb")
        self.rate, self.block = rate, block
        self.start, self.sent = time.monotonic(), 0

    def write(self, data):
        view = memoryview(data)
        for at in range(0, len(view), self.block):
            piece = view[at:at + self.block]
            self.f.write(piece)
            self.f.flush()
            os.fsync(self.f.fileno())
            self.sent += len(piece)
            ahead = self.sent / self.rate - (time.monotonic() - self.start)
            if ahead > 0:
                time.sleep(ahead)
        return len(view)

    def close(self):
        self.f.close()
