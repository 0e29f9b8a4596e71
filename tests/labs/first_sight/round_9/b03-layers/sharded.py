import torch
import torch.distributed as dist
import torch.nn as nn


class Unit:
    """One wrapped module: every rank owns a slice of its flat parameter."""

    def __init__(self, module, rank, world, gather_pg, reduce_pg, lr):
        self.module, self.rank, self.world = module, rank, world
        self.gather_pg, self.reduce_pg, self.lr = gather_pg, reduce_pg, lr
        self.params = list(module.parameters())
        self.numels = [p.numel() for p in self.params]
        n = sum(self.numels)
        self.per = (n + world - 1) // world
        flat = torch.zeros(self.per * world)
        flat[:n] = torch.cat([p.data.reshape(-1) for p in self.params])
        self.shard = flat[rank * self.per:(rank + 1) * self.per].clone()
        self.momentum = torch.zeros_like(self.shard)

    def unshard(self):
        parts = [torch.empty(self.per) for _ in range(self.world)]
        dist.all_gather(parts, self.shard, group=self.gather_pg)
        flat = torch.cat(parts)
        for p, piece in zip(self.params, flat[:sum(self.numels)].split(self.numels)):
            p.data = piece.view(p.shape)
            p.grad = None

    def reduce_and_step(self):
        flat = torch.zeros(self.per * self.world)
        flat[:sum(self.numels)] = torch.cat([p.grad.reshape(-1) for p in self.params])
        dist.all_reduce(flat, group=self.reduce_pg)
        g = flat[self.rank * self.per:(self.rank + 1) * self.per] / self.world
        self.momentum.mul_(0.9).add_(g)
        self.shard.add_(self.momentum, alpha=-self.lr)

    def free(self):
        for p in self.params:
            p.grad = None


class Replicated:
    """Small modules are not worth slicing: every rank has them whole."""

    def __init__(self, module, world, reduce_pg, lr):
        self.module, self.world, self.reduce_pg = module, world, reduce_pg
        self.opt = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9)

    def unshard(self):
        pass

    def reduce_and_step(self):
        for p in self.module.parameters():
            dist.all_reduce(p.grad, group=self.reduce_pg)
            p.grad /= self.world
        self.opt.step()

    def free(self):
        self.opt.zero_grad()


class ResidualBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
