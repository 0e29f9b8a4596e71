import json
import logging
import queue
import threading

log = logging.getLogger("reporter")


class Reporter:
    """Writes records in the background; close() returns when all are on disk."""

    def __init__(self, path):
        self.q = queue.Queue()
        self.file = open(path, "a")
        self.thread = threading.Thread(target=self._drain, name="reporter", daemon=True)
        self.thread.start()

    def _drain(self):
        while True:
            record = self.q.get()
            try:
                self.file.write(json.dumps(record) + "\n")
                self.file.flush()
            except Exception as e:
                log.info("reporter ends: %s", e)
                return
            self.q.task_done()

    def put(self, **record):
        self.q.put(record)

    def close(self):
        self.q.join()
        self.file.close()
