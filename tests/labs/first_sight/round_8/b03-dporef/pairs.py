import time

import torch


class Pairs:
    def __init__(self, n, vocab, length=48):
        gen = torch.Generator().manual_seed(5)
        self.chosen = torch.randint(vocab, (n, length), generator=gen)
        self.rejected = torch.randint(vocab, (n, length), generator=gen)

    def __len__(self):
        return len(self.chosen)

    def epoch(self, number, rank, world, batch):
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(100 + number)).tolist()
        mine = order[rank::world]
        for i in range(0, len(mine), batch):
            time.sleep(0.15)
            ids = mine[i:i + batch]
            yield ids, self.chosen[ids], self.rejected[ids]
