"""A small status file for the dashboard, refreshed by a timer while the job trains."""
import json
import os
import signal
import threading
import time


class Status:
    def __init__(self, path, every=1):
        self.path, self.every = path, every
        self.lock = threading.Lock()
        self.losses = []
        self.summary = {}
        signal.signal(signal.SIGALRM, self._tick)
        signal.alarm(every)

    def add(self, step, loss):
        with self.lock:
            self.losses.append(loss)
            window = sorted(self.losses[-20000:])
            n = len(window)
            self.summary = {"step": step, "min": window[0], "median": window[n // 2],
                            "p90": window[int(n * 0.9)], "trend": self._trend()}

    def _trend(self):
        recent = self.losses[-4000:]
        if len(recent) < 2:
            return 0.0
        smooth = recent[0]
        for v in recent:
            smooth += 0.02 * (v - smooth)
        return smooth - sum(recent) / len(recent)

    def _tick(self, signum, frame):
        with self.lock:
            body = dict(self.summary, time=time.time(), pid=os.getpid())
        with open(self.path + ".new", "w") as f:
            json.dump(body, f)
        os.replace(self.path + ".new", self.path)
        signal.alarm(self.every)
