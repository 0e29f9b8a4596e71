import json
import queue
import threading


class Prefetcher:
    """Reads JSON lines in a thread, a few batches ahead."""

    def __init__(self, path, batch, depth=8):
        self.path = path
        self.batch = batch
        self.queue = queue.Queue(depth)
        self.error = None
        self.stopped = False
        self.thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self.thread.start()

    def _run(self):
        try:
            while not self.stopped:
                rows = []
                with open(self.path, encoding="utf-8") as f:
                    for line in f:
                        rec = json.loads(line)
                        rows.append((rec["features"], rec["label"]))
                        if len(rows) == self.batch:
                            self.queue.put(rows)
                            rows = []
        except Exception as e:
            self.error = e

    def next(self):
        return self.queue.get()

    def close(self):
        self.stopped = True
        while not self.queue.empty():
            self.queue.get_nowait()
        self.thread.join()
        if self.error is not None:
            raise RuntimeError(f"reading {self.path} failed") from self.error
