"""What the main thread and the checkpoint thread share."""
import io
import json
import threading
import zlib
from pathlib import Path

import torch


class Book:
    """History of the metrics and the weights to keep; a lock for each."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.history = []
        self.history_lock = threading.Lock()
        self.weights = {}
        self.weights_lock = threading.Lock()

    def note(self, step, loss):
        with self.history_lock:
            self.history.append((step, loss, self.weight_norm()))

    def weight_norm(self):
        with self.weights_lock:
            return sum(float(w.norm()) for w in self.weights.values())

    def keep(self, module, decay=0.9):
        for k, v in module.state_dict().items():
            self.weights[k] = v.clone() if k not in self.weights else self.weights[k] * decay + v * (1 - decay)

    def _write(self, name, milestone):
        with self.weights_lock:
            buf = io.BytesIO()
            torch.save(self.weights, buf)
            data = zlib.compress(buf.getvalue(), 9 if milestone else 1)
            (self.folder / f"{name}.z").write_bytes(data)
            if milestone:
                with self.history_lock:
                    (self.folder / f"{name}.json").write_text(json.dumps(self.history))

    def save(self, name, milestone=False):
        t = threading.Thread(target=self._write, args=(name, milestone), name="save-" + name)
        t.start()
        return t
