import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class First:
    """Stage 0: embeds, sends activations on, takes their gradients back."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.net = nn.Sequential(nn.Linear(cfg.features, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, cfg.hidden))

    def step(self, x, y):
        held = []
        for micro in x.split(self.cfg.micro):
            act = self.net(micro)
            dist.send(act.detach(), 1)
            held.append(act)
        for act in held:
            grad = torch.empty_like(act)
            dist.recv(grad, 1)
            act.backward(grad)
        return None


class Last:
    """Stage 1: takes activations, computes the loss, sends gradients back."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.net = nn.Sequential(nn.Tanh(), nn.Linear(cfg.hidden, cfg.classes))

    def step(self, x, y):
        cfg = self.cfg
        held = []
        for _ in range(cfg.batch // cfg.micro):
            act = torch.empty(cfg.micro, cfg.hidden)
            dist.recv(act, 0)
            held.append(act.requires_grad_())
        total = 0.0
        for act, target in zip(held, y.split(cfg.micro)):
            loss = F.cross_entropy(self.net(act), target) / len(held)
            loss.backward()
            dist.send(act.grad, 0)
            total += loss.item()
        return total
