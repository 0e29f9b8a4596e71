import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, obs=24, act=6, dim=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh())
        self.pi, self.v = nn.Linear(dim, act), nn.Linear(dim, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


class Walker:
    """A small continuing environment: move a point towards a target that drifts."""

    def __init__(self, seed, n=8):
        self.g = torch.Generator().manual_seed(seed)
        self.pos = torch.randn(n, 12, generator=self.g)
        self.goal = torch.randn(n, 12, generator=self.g)
        self.moves = torch.randn(6, 12, generator=torch.Generator().manual_seed(9)) * 0.2

    def obs(self):
        return torch.cat([self.pos, self.goal - self.pos], 1)

    def step(self, a):
        before = (self.goal - self.pos).norm(dim=1)
        self.pos = self.pos + self.moves[a]
        self.goal = self.goal + 0.02 * torch.randn(self.goal.shape, generator=self.g)
        return before - (self.goal - self.pos).norm(dim=1)
