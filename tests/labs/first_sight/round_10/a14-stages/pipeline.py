"""GPipe schedule over send/recv: all forwards of a batch, then all backwards."""
import torch
import torch.distributed as dist
from torch import nn


class Stage(nn.Module):
    def __init__(self, conf, index, count):
        super().__init__()
        per = conf.layers // count
        self.first, self.last = index == 0, index == count - 1
        mods = []
        for _ in range(per):
            mods += [nn.Linear(conf.width, conf.width), nn.LayerNorm(conf.width), nn.ReLU()]
        if self.last:
            mods.append(nn.Linear(conf.width, conf.classes))
        self.net = nn.Sequential(*mods)

    def forward(self, x):
        return self.net(x)


class Pipeline:
    def __init__(self, stage, conf, rank):
        self.stage, self.conf, self.rank = stage, conf, rank
        self.shape = (conf.micro, conf.width)

    def feed(self, x):
        """First stage: x is the whole batch."""
        outs = []
        for mb in x.split(self.conf.micro):
            out = self.stage(mb)
            dist.send(out.detach(), self.rank + 1)
            outs.append(out)
        for out in outs:
            grad = torch.empty_like(out)
            dist.recv(grad, self.rank + 1)
            out.backward(grad)

    def relay(self):
        ins, outs = [], []
        for _ in range(self.conf.n_micro):
            x = torch.empty(self.shape)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
            out = self.stage(x)
            dist.send(out.detach(), self.rank + 1)
            ins.append(x)
            outs.append(out)
        for x, out in zip(ins, outs):
            grad = torch.empty_like(out)
            dist.recv(grad, self.rank + 1)
            out.backward(grad)
            dist.send(x.grad, self.rank - 1)

    def finish(self, y):
        ins, losses = [], []
        for m in range(self.conf.n_micro):
            x = torch.empty(self.shape)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
            lo = m * self.conf.micro
            losses.append(nn.functional.cross_entropy(self.stage(x), y[lo:lo + self.conf.micro]))
            ins.append(x)
        for x, loss in zip(ins, losses):
            (loss / len(losses)).backward()
            dist.send(x.grad, self.rank - 1)
        return sum(l.item() for l in losses) / len(losses)
