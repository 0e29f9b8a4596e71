"""Keep the examples on which the model is worst, for the annotators."""
import multiprocessing as mp
import os

import numpy as np


def collect(queue, folder, limit):
    os.makedirs(folder, exist_ok=True)
    kept = 0
    while kept < limit:
        item = queue.get()
        if item is None:
            break
        key, loss, image = item
        np.savez_compressed(os.path.join(folder, f"{key}.npz"), loss=loss, image=image)
        kept += 1


class HardExamples:
    def __init__(self, folder, limit):
        context = mp.get_context("fork")
        self.queue = context.Queue()
        context.Process(target=collect, args=(self.queue, folder, limit), daemon=True).start()

    def offer(self, key, loss, image):
        self.queue.put((key, loss, image))

    def close(self):
        self.queue.put(None)
