import collections
import os

import numpy as np
import torch

from bundles import BundleReader


def read_list(path):
    with open(path) as fh:
        return [line.strip() for line in fh if line.strip()]


class PageLoader:
    """Keeps a few batches in flight.  Pages are taken in the order of the list: neighbours help each other."""

    def __init__(self, root, rank, batch_size, ahead=2):
        self.names = read_list(os.path.join(root, f"list-{rank}.txt"))
        self.reader = BundleReader(root)
        self.batch_size, self.ahead = batch_size, ahead

    def __len__(self):
        return len(self.names) // self.batch_size

    def __iter__(self):
        flight = collections.deque()
        for b in range(len(self)):
            flight.append(self.reader.batch(self.names[b * self.batch_size:(b + 1) * self.batch_size]))
            if len(flight) > self.ahead:
                yield self._collect(flight.popleft())
        while flight:
            yield self._collect(flight.popleft())

    @staticmethod
    def _collect(futures):
        images, labels = zip(*(f.result() for f in futures))
        return torch.from_numpy(np.stack(images))[:, None], torch.tensor(labels)
