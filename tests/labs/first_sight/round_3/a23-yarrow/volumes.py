import time

import torch
from torch.utils.data import IterableDataset, get_worker_info


class Volumes(IterableDataset):
    """Scans: a few are large."""

    def __init__(self, rank, count):
        self.rank, self.count = rank, count

    def __iter__(self):
        w = get_worker_info()
        for i in range(w.id, self.count, w.num_workers):
            g = torch.Generator().manual_seed(1000 * self.rank + i)
            time.sleep(22.0 if i % 12 == 7 else 3.0)  # read and resample
            yield torch.randn(1, 12, 12, 12, generator=g), torch.randint(0, 3, (1,), generator=g)
