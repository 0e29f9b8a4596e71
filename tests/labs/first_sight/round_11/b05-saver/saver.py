"""Saves checkpoints in the background, so that training need not wait for the disk."""
import json
import queue
import threading
import time
from pathlib import Path

import torch


class Saver:
    def __init__(self, folder, keep=4):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        for p in self.folder.iterdir():
            p.unlink()
        self.keep = keep
        self.error = None
        self.jobs = queue.Queue()
        self.thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self.thread.start()

    def put(self, step, state):
        copy = {k: v.detach().clone() for k, v in state.items()}
        self.jobs.put((step, copy))

    def _write(self, step, state):
        path = self.folder / f"step-{step}.pt"
        torch.save(state, path)
        old = sorted(p.name for p in self.folder.glob("step-*.pt"))
        for name in old[:-self.keep]:
            (self.folder / name).unlink()
        (self.folder / "latest.json").write_text(
            json.dumps({"step": step, "file": path.name, "bytes": path.stat().st_size, "time": time.time()}))

    def _work(self):
        try:
            while True:
                step, state = self.jobs.get()
                self._write(step, state)
                self.jobs.task_done()
        except Exception as e:
            self.error = e

    def close(self):
        self.jobs.join()
        if self.error:
            raise RuntimeError("a checkpoint was not saved") from self.error
