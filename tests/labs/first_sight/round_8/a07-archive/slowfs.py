"""A file whose writes go through at the rate of our archive share (the mount is throttled per client)."""
import os
import time


class ShareFile:
    def __init__(self, path, rate):
        self.f = open(path, "wb")
        self.rate = rate

    def write(self, data):
        view = memoryview(data)
        step = 16 * 1024
        for i in range(0, len(view), step):
            chunk = view[i:i + step]
            self.f.write(chunk)
            self.f.flush()
            os.fsync(self.f.fileno())
            time.sleep(len(chunk) / self.rate)
        return len(view)

    def flush(self):
        self.f.flush()

    def close(self):
        self.f.close()
