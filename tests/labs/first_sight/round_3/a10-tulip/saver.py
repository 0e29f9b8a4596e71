import os
import queue
import threading

import torch


class Saver:
    """Writes checkpoints in the background, one at a time."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.todo = queue.Queue()
        threading.Thread(target=self._run, name="saver", daemon=True).start()

    def _run(self):
        while True:
            step, state = self.todo.get()
            path = f"{self.folder}/last.pt"
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)
            self.todo.task_done()

    def save(self, step, state):
        self.todo.join()  # the one before must be on disk
        self.todo.put((step, state))
