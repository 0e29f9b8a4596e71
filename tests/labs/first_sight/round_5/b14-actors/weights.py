"""Policy weights in shared memory: one writer (the learner), any number of readers (its actors).

Layout: int64 version counter, then the float32 weights. While the writer is at work the counter is odd; a reader
copies the weights and takes them when the counter was even and is the same before and after.
"""
import numpy as np
from multiprocessing import shared_memory

LIMIT = 2.0  # the range of the actors' fixed point kernels


class SharedWeights:
    def __init__(self, size, name=None):
        self.shm = shared_memory.SharedMemory(name=name, create=name is None, size=8 + 4 * size)
        self.counter = np.ndarray(1, np.int64, self.shm.buf)
        self.data = np.ndarray(size, np.float32, self.shm.buf, offset=8)
        if name is None:
            self.counter[0] = 0

    @property
    def name(self):
        return self.shm.name

    def publish(self, tensors):
        self.counter[0] += 1
        at = 0
        for t in tensors:
            flat = t.detach().reshape(-1).numpy()
            if not np.isfinite(flat).all():
                raise ValueError("weights are not finite")
            if np.abs(flat).max() > LIMIT:
                raise OverflowError(f"weights out of range for the actors ({np.abs(flat).max():.2f})")
            self.data[at:at + flat.size] = flat
            at += flat.size
        self.counter[0] += 1

    def read(self, seen):
        """The weights and their version; `seen` when nothing is new."""
        while True:
            before = int(self.counter[0])
            if before % 2 == 0:
                if before == seen:
                    return None, seen
                copy = self.data.copy()
                if int(self.counter[0]) == before:
                    return copy, before

    def close(self):
        del self.counter, self.data
        self.shm.close()
