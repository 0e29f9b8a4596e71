import numpy as np


class Replay:
    """Frames of the environment, kept as they come, the oldest dropped beyond the capacity."""

    def __init__(self, capacity, rng):
        self.capacity, self.rng = capacity, rng
        self.frames, self.targets = [], []

    def extend(self, frames, targets):
        self.frames.extend(frames)
        self.targets.extend(targets)
        if len(self.frames) > self.capacity:
            del self.frames[: len(self.frames) - self.capacity]
            del self.targets[: len(self.targets) - self.capacity]

    def sample(self, n):
        idx = self.rng.integers(0, len(self.frames), n)
        return np.stack([self.frames[i] for i in idx]), np.array([self.targets[i] for i in idx], "float32")


class Env:
    """A dot that moves over a field of SIZE x SIZE."""

    def __init__(self, size, rng):
        self.size, self.rng = size, rng
        self.pos = np.array([size / 2, size / 2])
        self.vel = rng.normal(size=2)

    def steps(self, n):
        frames, targets = [], []
        for _ in range(n):
            self.vel += self.rng.normal(size=2) * 0.2
            self.pos = (self.pos + self.vel) % self.size
            f = np.zeros((self.size, self.size), "float32")
            y, x = self.pos.astype(int)
            f[max(0, y - 2):y + 3, max(0, x - 2):x + 3] = 1
            f += 0.01
            frames.append(f)
            targets.append(self.vel[0])
        return frames, targets
