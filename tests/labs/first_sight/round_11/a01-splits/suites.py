"""Each suite is scored by one rank; the score is then given to all."""
import zlib

import torch
import torch.distributed as dist


class SuiteEvaluator:
    def __init__(self, names, limit=64):
        self.suites = {n.split("-")[0] for n in names} | {n for n in names if n.endswith("-mm")}
        self.limit = limit
        self.world = dist.get_world_size()
        self.rank = dist.get_rank()

    def owner(self, name):
        return zlib.crc32(name.encode()) % self.world

    @torch.no_grad()
    def score(self, model, name):
        g = torch.Generator().manual_seed(zlib.crc32(name.encode()) % 10000)
        x = torch.randint(0, 512, (self.limit, 48), generator=g)
        return (model(x).argmax(1) == x.sum(1) % 7).float().mean()

    def run(self, model):
        model.eval()
        table = {}
        for name in self.suites:
            value = torch.zeros(())
            if self.owner(name) == self.rank:
                value = self.score(model, name)
            dist.broadcast(value, src=self.owner(name))
            table[name] = value.item()
        model.train()
        return table
