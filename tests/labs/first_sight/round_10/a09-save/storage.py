import os
import time


class SlowShare:
    """File of the group's archive share: written in 256 KiB pieces, each one synced.

    The share is limited for each client, RATE bytes a second; going faster gets the mount throttled for everybody.
    """

    PIECE = 256 * 1024

    def __init__(self, path, rate):
        self.path, self.rate = path, rate
        self.fh = open(path + ".incomplete", "wb", buffering=0)

    def write(self, data):
        view = memoryview(data).cast("B")
        for lo in range(0, len(view), self.PIECE):
            t = time.monotonic()
            n = self.fh.write(view[lo:lo + self.PIECE])
            os.fsync(self.fh.fileno())
            time.sleep(max(0.0, n / self.rate - (time.monotonic() - t)))
        return len(view)

    def flush(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        self.fh.close()
        if kind is None:
            os.replace(self.path + ".incomplete", self.path)
