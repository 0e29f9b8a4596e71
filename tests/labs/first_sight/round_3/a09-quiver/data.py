import torch
from torch.utils.data import Dataset

import stats


class Pairs(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        a = torch.randn(40, generator=g)
        if a[0] > 1.5:
            stats.count("clipped")
            a = a.clamp(-1.5, 1.5)
        return a, a.roll(1)
