import logging
import os
import queue
import threading
import time

log = logging.getLogger(__name__)


class Bucket:
    """A directory that stands for the object store: limited rate, limited size."""

    def __init__(self, root, rate=24 << 20, limit=24 << 20):
        self.root, self.rate, self.limit = root, rate, limit
        os.makedirs(root, exist_ok=True)

    def used(self):
        return sum(e.stat().st_size for e in os.scandir(self.root))

    def put(self, path):
        size = os.path.getsize(path)
        if self.used() + size > self.limit:
            raise PermissionError(f"403 QuotaExceeded: {os.path.basename(path)}")
        with open(path, "rb") as src, open(os.path.join(self.root, os.path.basename(path)), "wb") as dst:
            while chunk := src.read(1 << 20):
                dst.write(chunk)
                time.sleep(len(chunk) / self.rate)


class Uploader:
    def __init__(self, bucket, depth=2):
        self.bucket = bucket
        self.pending = queue.Queue(maxsize=depth)      # keep local disk use bounded
        self.thread = threading.Thread(target=self._drain, name="uploader", daemon=True)
        self.thread.start()

    def submit(self, path):
        self.pending.put(path)

    def _drain(self):
        try:
            while (path := self.pending.get()) is not None:
                self.bucket.put(path)
                os.unlink(path)
                log.info("uploaded %s", path)
                self.pending.task_done()
        except Exception as e:
            log.error("upload: %s", e)

    def close(self):
        self.pending.put(None)
        self.thread.join()
