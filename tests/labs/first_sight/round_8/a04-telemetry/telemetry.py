import json
import signal
import threading
import time

import torch


class Telemetry:
    """Collects records of the run and writes them to disk every second."""

    def __init__(self, path, every=1.0):
        self.path = path
        self.rows = []
        self.lock = threading.Lock()
        self.written = 0
        self.every = every
        signal.signal(signal.SIGALRM, self._on_timer)
        signal.setitimer(signal.ITIMER_REAL, every)

    def _on_timer(self, signum, frame):
        self.flush()
        signal.setitimer(signal.ITIMER_REAL, self.every)

    def record(self, step, loss, model):
        with self.lock:
            row = {"step": step, "loss": loss, "t": time.time()}
            for name, p in model.named_parameters():
                row[name] = {"norm": p.detach().norm().item(),
                             "hist": torch.histc(p.detach(), 32).tolist(),
                             "q": torch.quantile(p.detach().flatten()[:20000], torch.tensor([.01, .5, .99])).tolist()}
            self.rows.append(json.dumps(row))

    def flush(self):
        with self.lock:
            rows, self.rows = self.rows, []
        with open(self.path, "a") as f:
            for r in rows:
                f.write(r + "\n")
        self.written += len(rows)

    def close(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.flush()
