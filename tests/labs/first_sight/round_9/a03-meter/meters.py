import json
import os
import signal
import threading
import time


class LossMeter:
    """Keeps every sample's loss; publishes quantiles for the dashboard a few times a second."""

    def __init__(self, path):
        self.path = path
        self.values = []
        self.summary = {}
        self._guard = threading.Lock()

    def add(self, losses):
        with self._guard:
            self.values.extend(losses)
            ordered = sorted(self.values[-60000:])
            n = len(ordered)
            self.summary = {q: ordered[min(n - 1, int(q * n))] for q in (0.05, 0.5, 0.95)}
            self.summary["trimmed"] = sum(ordered[n // 10:n - n // 10]) / max(1, n - 2 * (n // 10))

    def publish(self, *_):
        with self._guard:
            snap = dict(self.summary, n=len(self.values), at=time.time())
        tmp = self.path + ".tmp"
        with open(tmp, "w") as f:
            json.dump({str(k): v for k, v in snap.items()}, f)
        os.replace(tmp, self.path)
        signal.setitimer(signal.ITIMER_REAL, self.every)

    def start_publishing(self, every):
        self.every = every
        signal.signal(signal.SIGALRM, self.publish)
        signal.setitimer(signal.ITIMER_REAL, every)
