import fcntl
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Tapes(Dataset):
    """Archive with a single drive: whoever reads holds it, the others queue."""

    def __init__(self, drive, n, rank):
        self.drive, self.n, self.rank = drive, n, rank

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        fd = os.open(self.drive, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            time.sleep(5.5 if (i + self.rank) % 3 == 0 else 1.8)
        finally:
            os.close(fd)
        gen = torch.Generator().manual_seed(i * 16 + self.rank)
        return torch.randn(256, 96, generator=gen)


def reels(drive, n, rank):
    return DataLoader(Tapes(drive, n, rank), batch_size=None, num_workers=1, prefetch_factor=1)
