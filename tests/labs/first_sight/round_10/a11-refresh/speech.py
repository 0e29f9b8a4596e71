import torch
from torch.utils.data import Dataset


class Utterances(Dataset):
    """Synthetic filterbank frames, seeded by the fingerprint of the recording."""

    def __init__(self, catalog, frames=80, bands=32):
        self.catalog = catalog
        self.names = catalog.names()
        self.frames, self.bands = frames, bands

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        seconds, mark = self.catalog.lookup(self.names[i])
        g = torch.Generator().manual_seed(mark)
        x = torch.randn(self.frames, self.bands, generator=g)
        x += torch.linspace(-1, 1, self.bands) * (seconds / 10)
        return x, torch.tensor(min(int(seconds), 19))
