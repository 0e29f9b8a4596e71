"""Audit log of the samples seen. Records go through a bounded queue so that the steps do not wait for the disk."""
import json
import logging
import logging.handlers
import queue

logger = logging.getLogger("audit")


class Enqueue(logging.handlers.QueueHandler):
    def enqueue(self, record):
        # put_nowait would drop records under load; the audit must be complete
        self.queue.put(record)


class JsonLines(logging.Handler):
    LIMIT = 2000

    def __init__(self, path):
        super().__init__()
        self.f = open(path, "w")

    def emit(self, record):
        row = json.dumps({"t": record.created, "level": record.levelname, "msg": record.getMessage()})
        if len(row) > self.LIMIT:
            logger.warning("record of %d bytes cut: %s...", len(row), row[20:60])
            row = json.dumps({"t": record.created, "cut": row[:self.LIMIT // 2]})
        self.f.write(row + "\n")
        self.f.flush()


def setup(path, depth=32):
    q = queue.Queue(depth)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(Enqueue(q))
    listener = logging.handlers.QueueListener(q, JsonLines(path))
    listener.start()
    return listener
