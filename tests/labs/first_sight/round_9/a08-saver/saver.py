import logging
import os
import queue
import threading

import torch

log = logging.getLogger("saver")


class Saver:
    """Writes checkpoints in the background; close() returns when all of them are on disk."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.todo = queue.Queue()
        self.thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self.thread.start()

    def submit(self, name, state):
        copy = {k: v.detach().clone() for k, v in state.items()}
        self.todo.put((name, copy))

    def _work(self):
        while True:
            name, state = self.todo.get()
            path = os.path.join(self.folder, name + ".pt")
            try:
                with open(path + ".tmp", "wb") as f:
                    torch.save(state, f)
                os.replace(path + ".tmp", path)
            except OSError as e:
                log.debug("%s: %s", path, e)
                continue
            self.todo.task_done()

    def close(self):
        self.todo.join()
