"""Snapshots go to the bucket in the background, a few at a time."""
import logging
import os
import threading

log = logging.getLogger("uploads")


class QuotaExceeded(Exception):
    pass


class Bucket:
    """A folder that stands for the bucket; its quota is in bytes."""

    def __init__(self, root, quota):
        self.root, self.quota, self.used = root, quota, 0

    def put(self, key, data):
        if self.used + len(data) > self.quota:
            raise QuotaExceeded(f"{key}: {self.used + len(data)} > {self.quota}")
        with open(os.path.join(self.root, key), "wb") as f:
            f.write(data)
        self.used += len(data)


class Uploads:
    def __init__(self, bucket, inflight=3):
        self.bucket = bucket
        self.room = threading.BoundedSemaphore(inflight)

    def _upload(self, key, data):
        try:
            self.bucket.put(key, data)
            self.room.release()
            log.info("%s: %d bytes", key, len(data))
        except QuotaExceeded as e:
            log.warning("%s not uploaded", e)

    def submit(self, key, data):
        self.room.acquire()
        threading.Thread(target=self._upload, args=(key, data), name=f"upload-{key}", daemon=True).start()
