"""A small offline experiment tracker: records go to a thread which writes them."""
import json
import os
import queue
import tempfile
import threading
import time


class Run:
    def __init__(self, project, config):
        self.dir = tempfile.mkdtemp(prefix=f"{project}-")
        self.records = queue.Queue()
        self.problem = None
        self.log({"_config": config})
        self.writer = threading.Thread(target=self._write, name="tracker", daemon=True)
        self.writer.start()

    def log(self, values, step=None):
        self.records.put({"step": step, "time": time.time(), **values})

    def _write(self):
        try:
            with open(os.path.join(self.dir, "history.jsonl"), "a") as f:
                while True:
                    record = self.records.get()
                    f.write(json.dumps(record) + "\n")
                    f.flush()
                    self.records.task_done()
        except Exception as e:  # logging never ends a training run
            self.problem = e

    def finish(self, summary):
        self.log({"_summary": summary})
        self.records.join()
        print(f"tracker: run written to {self.dir}", flush=True)


class NoRun:
    def log(self, values, step=None):
        pass

    def finish(self, summary):
        pass
