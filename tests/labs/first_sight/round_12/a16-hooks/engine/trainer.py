import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, net, data, callbacks, lr=1e-3, log_dir="logs"):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = DDP(net)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.data = data
        self.callbacks = callbacks
        os.makedirs(log_dir, exist_ok=True)
        self.log = logging.getLogger("engine")
        handler = logging.FileHandler(os.path.join(log_dir, f"rank_{self.rank}.log"), mode="w")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.log.addHandler(handler)
        self.log.setLevel(logging.INFO)
        self.log.propagate = False

    def emit(self, event, **kw):
        for cb in self.callbacks:
            try:
                getattr(cb, event)(self, **kw)
            except Exception as e:  # a report must not end a training of three weeks
                self.log.warning("%s.%s: %r", type(cb).__name__, event, e)

    def fit(self, steps):
        self.emit("on_start", steps=steps)
        for step in range(1, steps + 1):
            x, y, lang = next(self.data)
            logits = self.model(x)
            each = nn.functional.cross_entropy(logits, y, reduction="none")
            self.opt.zero_grad()
            each.mean().backward()
            self.opt.step()
            self.emit("on_step", step=step, losses=each.detach(), lang=lang)
        self.emit("on_end")
