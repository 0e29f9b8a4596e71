import logging
import os
import struct
import time

log = logging.getLogger("seg.archive")


class MaskArchive:
    """One growing file of predicted masks. The shared scratch has hiccups, so writes are repeated."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.end = 0

    def append(self, step, tensor):
        data = bytes(tensor.contiguous().untyped_storage())
        self._put(struct.pack("<QQ", step, len(data)) + data)

    def _put(self, blob):
        delay = 1.0
        done = 0
        while done < len(blob):
            try:
                done += os.pwrite(self.fd, blob[done:], self.end + done)
            except OSError as e:
                log.debug("write at %d: %s, again in %.0f s", self.end + done, e, delay)
                time.sleep(delay)
                delay = min(2 * delay, 15.0)
        self.end += done
