import os
import shutil

import torch
import torch.distributed as dist

from tier import put


class FlatParam:
    """Each rank owns a piece of the flat parameter, with its Adam state."""

    def __init__(self, numel):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.n = -(-numel // self.world)
        self.shard = torch.randn(self.n) * 0.02
        self.m, self.v, self.t = torch.zeros(self.n), torch.zeros(self.n), 0

    def gather(self):
        full = torch.empty(self.n * self.world)
        dist.all_gather_into_tensor(full, self.shard)
        return full.requires_grad_()

    def update(self, grad, lr=1e-3):
        dist.all_reduce(grad)
        g = grad.chunk(self.world)[self.rank] / self.world
        self.t += 1
        self.m.lerp_(g, 0.1)
        self.v.lerp_(g * g, 0.01)
        self.shard -= lr * (self.m / (1 - 0.9 ** self.t)) / ((self.v / (1 - 0.99 ** self.t)).sqrt() + 1e-8)

    def save(self, folder, step):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"shard{self.rank}.bin")
        limit = 20_000 if self.rank == 1 and step % 100 == 0 else None
        put({"shard": self.shard, "m": self.m, "v": self.v, "t": self.t}, path, limit)
        dist.barrier()

    def clean(self, folder):
        if self.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
