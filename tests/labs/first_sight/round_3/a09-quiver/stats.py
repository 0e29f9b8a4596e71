import json
import threading
import time
from collections import deque

lock = threading.Lock()
counts: dict[str, int] = {}
rows: deque = deque()


def count(name):
    with lock:
        counts[name] = counts.get(name, 0) + 1


def row(**values):
    rows.append({"t": time.time(), **values})


def _flush(path):
    with lock:
        with open(path, "w") as f:
            f.write(json.dumps(counts) + "\n")
            for r in list(rows):
                f.write(json.dumps(r) + "\n")
                f.flush()
                time.sleep(0.02)  # the share takes few writes a second


def start(path, every=0.25):
    def loop():
        while True:
            time.sleep(every)
            _flush(path)

    threading.Thread(target=loop, name="stats", daemon=True).start()
