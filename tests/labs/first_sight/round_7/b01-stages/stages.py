"""A three-stage pipeline over plain send/recv (GPipe: all forwards, then all backwards)."""
import torch
import torch.distributed as dist
from torch import nn

HIDDEN = 96


def build_stage(rank, world):
    if rank == 0:
        return nn.Sequential(nn.Linear(32, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN))
    if rank == world - 1:
        return nn.Sequential(nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 10))
    return nn.Sequential(nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN))


class Pipeline:
    def __init__(self, module, rank, world, micro_batches):
        self.module, self.rank, self.world = module, rank, world
        self.micro_batches = micro_batches
        self.first, self.last = rank == 0, rank == world - 1
        self.loss_fn = nn.CrossEntropyLoss()

    def _recv_activation(self):
        rows = torch.empty(1, dtype=torch.int64)
        dist.recv(rows, self.rank - 1)
        x = torch.empty(int(rows), HIDDEN)
        dist.recv(x, self.rank - 1)
        return x.requires_grad_()

    def _send_activation(self, y):
        dist.send(torch.tensor([y.shape[0]]), self.rank + 1)
        dist.send(y.detach().contiguous(), self.rank + 1)

    def step(self, inputs=None, labels=None):
        """`inputs` on the first stage, `labels` on the last; returns the loss there."""
        saved, total = [], 0.0
        if self.first:
            feed = list(inputs.chunk(self.micro_batches))
        elif self.last:
            targets, feed = labels, range(self.micro_batches)
        else:
            feed = range(self.micro_batches)
        offset = 0
        for item in feed:
            x = item if self.first else self._recv_activation()
            y = self.module(x)
            if self.last:
                rows = y.shape[0]
                y = self.loss_fn(y, targets[offset:offset + rows]) / self.micro_batches
                offset += rows
                total += y.item()
            else:
                self._send_activation(y)
            saved.append((x, y))
        for x, y in reversed(saved):
            if self.last:
                y.backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, self.rank + 1)
                y.backward(grad)
            if not self.first:
                dist.send(x.grad, self.rank - 1)
        return total
