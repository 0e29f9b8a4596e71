"""Fetches the rank's part of the data set from the cold tier into the scratch folder."""
import gzip
import hashlib
import os
import random
import time


class ColdTier:
    """Objects are recalled from tape: the first requests are refused with a time to come back."""

    def __init__(self, delay):
        self.ready_at = time.monotonic() + delay

    def get(self, name):
        left = self.ready_at - time.monotonic()
        if left > 0:
            raise BlockingIOError(f"{name} is being recalled")
        rng = random.Random(name)
        return gzip.compress(bytes(rng.randrange(256) for _ in range(200_000)), 1)


def fetch(name, tier, folder, pause=4.0):
    path = os.path.join(folder, name)
    while True:
        try:
            raw = tier.get(name)
            break
        except BlockingIOError:
            time.sleep(pause)
    data = gzip.decompress(raw)
    with open(path, "wb") as f:
        f.write(data)
    return path, hashlib.sha1(data).hexdigest()[:8]
