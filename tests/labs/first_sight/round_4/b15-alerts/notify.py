"""Run notes for the team channel; sent in the background, flushed when the process ends."""
import atexit
import json
import queue
import threading


class Notifier:
    def __init__(self, path):
        self.path = path
        self.box = queue.Queue()
        threading.Thread(target=self._work, daemon=True, name="notifier").start()
        atexit.register(self.flush)

    def send(self, **fields):
        self.box.put(fields)

    def flush(self):
        self.box.join()

    def _work(self):
        while True:
            fields = self.box.get()
            try:
                line = json.dumps(fields)
            except (TypeError, ValueError):
                continue
            with open(self.path, "a") as f:
                f.write(line + "\n")
            self.box.task_done()
