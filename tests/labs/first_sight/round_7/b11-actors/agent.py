import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, obs):
        return self.net(obs).log_softmax(-1)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def unflat(model, vec):
    k = 0
    for p in model.parameters():
        p.data.copy_(vec[k:k + p.numel()].view_as(p))
        k += p.numel()


def rollout(env, policy, g):
    obs, rows = env.reset(), []
    while not env.out:
        with torch.no_grad():
            a = torch.multinomial(policy(torch.tensor(obs)).exp(), 1, generator=g).item()
        nxt, reward = env.step(a)
        rows.append(obs + [float(a), reward])
        obs = nxt
    return torch.tensor(rows)
