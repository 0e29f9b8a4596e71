import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def sample(n, g):
    x = torch.randn(n, 20, generator=g)
    return x, (x[:, :5].prod(1, keepdim=True) + x[:, 5:9].sum(1, keepdim=True)).tanh()


class Trainer:
    def __init__(self, model, cfg, store):
        self.rank = dist.get_rank()
        self.cfg = cfg
        self.store = store
        self.raw = model
        self.model = DDP(model)
        self.opt = torch.optim.SGD(model.parameters(), cfg["lr"], momentum=0.9)
        self.hooks = []
        self.step = 0
        self.loss = None

    def call(self, event):
        for h in self.hooks:
            f = getattr(h, event, None)
            if f and self.step % h.every == 0:
                f(self)

    @torch.no_grad()
    def validate(self):
        x, y = sample(512, torch.Generator().manual_seed(99))
        return (self.raw(x) - y).pow(2).mean().item()

    def fit(self):
        g = torch.Generator().manual_seed(self.rank)
        while self.step < self.cfg["max_steps"]:
            x, y = sample(self.cfg["batch"], g)
            time.sleep(0.06)
            self.loss = (self.model(x) - y).pow(2).mean()
            self.opt.zero_grad()
            self.loss.backward()
            self.opt.step()
            self.step += 1
            self.call("after_step")
        dist.barrier()
