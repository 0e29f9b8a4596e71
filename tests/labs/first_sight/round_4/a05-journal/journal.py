"""Append-only journal of a rank. A lock keeps it whole: the dashboards read and cut these files, too."""
import fcntl
import gzip
import json
import multiprocessing
import os
import shutil
import time

LIMIT = 200 * 1024


def ship(folder, owner):
    """Compress rotated journals and move them to the folder from which they are collected."""
    os.makedirs(os.path.join(folder, "outbox"), exist_ok=True)
    while os.getppid() == owner:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".old"):
                path = os.path.join(folder, name)
                with open(path, "rb") as src, gzip.open(os.path.join(folder, "outbox", name + ".gz"), "wb") as dst:
                    shutil.copyfileobj(src, dst)
                os.unlink(path)
        time.sleep(3)


class Journal:
    def __init__(self, folder, rank):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.path = os.path.join(folder, f"rank{rank}.jsonl")
        self.lock_path = self.path + ".lock"
        self.rotated = 0
        self.shipper = None

    def append(self, **record):
        with open(self.lock_path, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(self.path, "a") as out:
                out.write(json.dumps({"t": round(time.time(), 3), **record}) + "\n")
                size = out.tell()
            if size > LIMIT:
                self._rotate()

    def _rotate(self):
        self.rotated += 1
        os.replace(self.path, f"{self.path}.{self.rotated:03d}.old")
        if self.shipper is None:
            self.shipper = multiprocessing.get_context("fork").Process(
                target=ship, args=(self.folder, os.getpid()), daemon=True)
            self.shipper.start()
