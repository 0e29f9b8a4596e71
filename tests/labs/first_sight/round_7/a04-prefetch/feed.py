import logging
import queue
import struct
import threading
import zlib

import torch

log = logging.getLogger("feed")
HEAD = struct.Struct("<II")


def records(path):
    with open(path, "rb") as f:
        while head := f.read(HEAD.size):
            size, crc = HEAD.unpack(head)
            body = f.read(size)
            if zlib.crc32(body) != crc:
                raise ValueError(f"{path}: bad record at {f.tell() - size}")
            yield struct.unpack_from("<H", body)[0], torch.frombuffer(bytearray(body[2:]), dtype=torch.float32)


class Feed:
    """Batches of a shard, read ahead by a thread."""

    def __init__(self, path, batch, ahead=8):
        self.path, self.batch = path, batch
        self.ready = queue.Queue(ahead)
        self.thread = threading.Thread(target=self._read, name="feed", daemon=True)
        self.thread.start()

    def _read(self):
        try:
            while True:
                labels, rows = [], []
                for label, row in records(self.path):
                    labels.append(label)
                    rows.append(row)
                    if len(rows) == self.batch:
                        self.ready.put((torch.stack(rows), torch.tensor(labels)))
                        labels, rows = [], []
        except Exception as e:
            log.error("reader: %s", e)

    def __iter__(self):
        return self

    def __next__(self):
        return self.ready.get()
