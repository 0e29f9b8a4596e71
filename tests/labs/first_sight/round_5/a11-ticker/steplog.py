"""A JSON-lines log that other tools tail: step records and a liveness record in between."""
import json
import os
import signal
import threading
import time


class StepLog:
    def __init__(self, path, beat=0.15):
        self.file = open(path, "a", buffering=1)
        self.guard = threading.Lock()
        self.beat = beat
        self.last_step = -1

    def write(self, kind, **fields):
        record = {"kind": kind, "time": time.time(), **fields}
        with self.guard:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())

    def step(self, step, **fields):
        self.last_step = step
        self.write("step", step=step, **fields)

    def start_beat(self):
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, self.beat)

    def _on_alarm(self, signum, frame):
        self.write("alive", step=self.last_step, pid=os.getpid())
        signal.setitimer(signal.ITIMER_REAL, self.beat)

    def close(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        with self.guard:
            self.file.close()
