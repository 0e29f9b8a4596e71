import gzip
import json
import math
import signal
import threading
import time


class Recorder:
    """Keeps the series, and writes what is new to a file every few moments, whatever the loop does."""

    def __init__(self, path, every):
        self.path = path
        self.every = every
        self.lock = threading.Lock()
        self.series = {}
        self.sums = {}
        signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, every)

    def add(self, name, value):
        # plain append: atomic under the interpreter's lock
        self.series.setdefault(name, []).append(value)

    def _tick(self, signum, frame):
        self.flush()
        signal.setitimer(signal.ITIMER_REAL, self.every)

    def flush(self):
        with self.lock:
            now = time.time()
            line = {k: (len(v), v[-1]) for k, v in self.series.items() if v}
            with open(self.path, "a") as f:
                f.write(json.dumps({"t": round(now, 2), **line}) + "\n")

    def summary(self):
        return " ".join(f"{k} {sum(v) / len(v):.4f}" for k, v in self.series.items() if v)

    def compact(self):
        """Raw values go into the archive, the last hundred stay."""
        with self.lock:
            with gzip.open(self.path + ".gz", "wt", compresslevel=6) as f:
                for name, values in self.series.items():
                    for chunk in range(0, len(values), 50):
                        part = values[chunk:chunk + 50]
                        mean = sum(part) / len(part)
                        std = math.sqrt(sum((p - mean) ** 2 for p in part) / len(part))
                        f.write(json.dumps([name, chunk, mean, std, part]) + "\n")
                    del values[:-100]
