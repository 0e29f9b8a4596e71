import os
import random

import numpy as np
import torch

LENGTH, WIDTH = 64, 33


class Replay:
    """Trajectories stay on disk: each is opened once, its rows are read when they are sampled."""

    def __init__(self, folder, seed):
        self.names = sorted(os.listdir(folder))
        self.folder = folder
        self.open, self.skipped = {}, 0
        self.rnd = random.Random(seed)
        self.rnd.shuffle(self.names)
        self.cursor = 0

    def _next(self):
        name = self.names[self.cursor % len(self.names)]
        self.cursor += 1
        if name not in self.open:
            try:
                self.open[name] = open(os.path.join(self.folder, name), "rb", buffering=0)
            except OSError:                   # half-written by the exporter: take another one
                self.skipped += 1
                name = self.rnd.choice(list(self.open))
        return self.open[name]

    @staticmethod
    def _rows(f, idx):
        return [np.frombuffer(os.pread(f.fileno(), 4 * WIDTH, 128 + 4 * WIDTH * i), dtype="float32") for i in idx]

    def sample(self, n=64):
        rows = []
        for traj in (self._next(), self._next()):
            rows.append(np.stack(self._rows(traj, [self.rnd.randrange(LENGTH) for _ in range(n // 2)])))
        x = torch.from_numpy(np.concatenate(rows))
        return x[:, :32], x[:, 32:]
