import queue

import torch


class Slabs:
    """A fixed number of pinned-size host buffers, so that memory stays flat."""

    def __init__(self, count, shape):
        self.free = queue.LifoQueue()
        for _ in range(count):
            self.free.put(torch.empty(shape))

    def take(self):
        return self.free.get()

    def give(self, slab):
        self.free.put(slab)
