"""Augmentation in a helper process, which is replaced when it has grown too large."""
import multiprocessing as mp

import numpy as np
import psutil

GROW_LIMIT = 256 * 2 ** 20
_grids = {}


def grid(shape):
    """Distortion fields are costly: keep them for the next image of that size."""
    if shape not in _grids:
        rng = np.random.default_rng(shape[0] * 10007 + shape[1])
        _grids[shape] = rng.standard_normal((8, *shape)).astype(np.float32)
    return _grids[shape]


def work(tasks, results):
    while True:
        job = tasks.get()
        if job is None:
            return
        seed, image = job
        rng = np.random.default_rng(seed)
        field = grid(image.shape)[rng.integers(8)]
        results.put(np.clip(image + 0.05 * field, 0, 1)[::rng.choice([-1, 1])].copy())


class Augmenter:
    def __init__(self):
        self.context = mp.get_context("fork")
        self.tasks = self.context.Queue()
        self.results = self.context.Queue()
        self._start()

    def _start(self):
        self.process = self.context.Process(target=work, args=(self.tasks, self.results), daemon=True)
        self.process.start()
        self.usage = psutil.Process(self.process.pid)
        self.base = self.usage.memory_info().rss

    def __call__(self, seed, images):
        for n, image in enumerate(images):
            self.tasks.put((seed * 1000 + n, image))
        return [self.results.get() for _ in images]

    def trim(self):
        if self.usage.memory_info().rss - self.base > GROW_LIMIT:
            self.process.terminate()
            self.process.join()
            self._start()
