import torch
import torch.nn as nn


class Ranker(nn.Module):
    """Scores query-document pairs given as bags of hashed words."""

    def __init__(self, buckets=4000, d=192):
        super().__init__()
        self.q, self.d = nn.EmbeddingBag(buckets, d), nn.EmbeddingBag(buckets, d)
        self.top = nn.Sequential(nn.Linear(2 * d, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1))

    def forward(self, q, d):
        return self.top(torch.cat([self.q(q), self.d(d)], -1)).squeeze(-1)


def pairs(n, g):
    q = torch.randint(0, 4000, (n, 6), generator=g)
    d = torch.randint(0, 4000, (n, 40), generator=g)
    y = torch.randint(0, 2, (n,), generator=g)
    d[:, :3] = torch.where(y[:, None] > 0, q[:, :3], d[:, :3])
    return q, d, y.float()
