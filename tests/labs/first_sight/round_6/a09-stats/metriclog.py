import json
import signal
import threading
import time

import torch


class MetricLog:
    """Collects statistics of a run; what has gathered is written every `every` seconds."""

    def __init__(self, path, every=2.0, first=12.0):
        self.file = open(path, "a")
        self.rows = []
        self.lock = threading.Lock()
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, first, every)

    def _on_alarm(self, signum, frame):
        self.flush()

    def add(self, step, **values):
        with self.lock:
            row = {"step": step, "t": round(time.time(), 3)}
            for name, v in values.items():
                row[name] = self._summary(v) if isinstance(v, torch.Tensor) else v
            self.rows.append(row)

    @staticmethod
    def _summary(t):
        flat = t.detach().float().flatten()
        values = flat.tolist()
        edges = torch.linspace(flat.min().item(), flat.max().item(), 17).tolist()
        counts = [0] * 16
        width = (edges[-1] - edges[0]) / 16 or 1.0
        for v in values:
            counts[min(15, int((v - edges[0]) / width))] += 1
        return {"mean": flat.mean().item(), "std": flat.std().item(), "hist": counts}

    def flush(self):
        with self.lock:
            for row in self.rows:
                self.file.write(json.dumps(row) + "\n")
            self.rows.clear()
            self.file.flush()

    def close(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.flush()
        self.file.close()
