import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sentences(Dataset):
    """Sorted by source; the last sources come without a language label for some of the sentences."""

    def __init__(self, n=4800, length=18):
        g = torch.Generator().manual_seed(4)
        self.x = torch.randint(0, 300, (n, length), generator=g)
        self.tags = self.x % 9
        self.lang = self.x[:, 0] % 6
        missing = torch.rand(n, generator=g) < 0.55
        missing[: n // 4] = False
        self.lang[missing] = -1

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.tags[i], self.lang[i]


def loader(rank, world, batch):
    data = Sentences()
    sampler = DistributedSampler(data, world, rank, shuffle=False)
    return DataLoader(data, batch, sampler=sampler, drop_last=True)
