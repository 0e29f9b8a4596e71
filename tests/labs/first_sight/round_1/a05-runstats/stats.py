import json
import signal
import threading
import time


class RunStats:
    """Counters of a run; written to disk every `every` seconds, whatever the loop is doing."""

    def __init__(self, path, every):
        self.path = path
        self.lock = threading.Lock()
        self.steps = 0
        self.samples = 0
        self.loss_sum = 0.0
        signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, every, every)

    def _tick(self, signum, frame):
        self.write()

    def add(self, n, loss):
        self.samples += n
        self.loss_sum += loss

    def write(self):
        with self.lock:
            row = {"t": time.time(), "steps": self.steps, "samples": self.samples,
                   "loss": self.loss_sum / max(1, self.samples)}
        with open(self.path, "a") as f:
            f.write(json.dumps(row) + "\n")

    def close(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.write()
