"""Writes to the shared volume, no faster than our share of it."""
import time


class Throttled:
    def __init__(self, path, rate, block=16384):
        self.file = open(path, "wb")
        self.rate, self.block = rate, block

    def write(self, data):
        view = memoryview(data)
        for i in range(0, len(view), self.block):
            part = view[i:i + self.block]
            self.file.write(part)
            self.file.flush()
            time.sleep(len(part) / self.rate)
        return len(view)

    def close(self):
        self.file.close()
