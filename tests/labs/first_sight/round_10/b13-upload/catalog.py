"""The run's catalogue of files: one JSON line each, appended under a lock as several processes write it."""
import contextlib
import fcntl
import json
import os
import time


class Catalog:
    def __init__(self, folder):
        self.path = os.path.join(folder, "catalog.jsonl")
        self.lock_path = os.path.join(folder, ".catalog.lock")

    @contextlib.contextmanager
    def locked(self):
        fd = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield self
        finally:
            os.close(fd)

    def add(self, **entry):
        with open(self.path, "a") as f:
            f.write(json.dumps({"time": round(time.time(), 2), **entry}) + "\n")

    def entries(self):
        if not os.path.exists(self.path):
            return []
        with open(self.path) as f:
            return [json.loads(line) for line in f]
