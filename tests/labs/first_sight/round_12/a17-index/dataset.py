import torch
from torch.utils.data import Dataset

import index


class Indexed(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(index.lookup(i))
        x = torch.randn(180, generator=g)
        return x, x[:8].argmax()
