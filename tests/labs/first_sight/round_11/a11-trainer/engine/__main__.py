import datetime
import json
import logging
import sys

import torch
import torch.distributed as dist
from torch import nn

from . import Trainer, hooks

cfg = json.load(open(sys.argv[1]))
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(asctime)s %(message)s", stream=sys.stdout)
store = dist.TCPStore("127.0.0.1", cfg["store_port"], world, rank == 0, timeout=datetime.timedelta(seconds=60))
torch.manual_seed(11)
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
trainer = Trainer(model, cfg, store)
for h in cfg["hooks"]:
    h = dict(h)
    trainer.hooks.append(getattr(hooks, h.pop("name"))(**h))
trainer.fit()
dist.destroy_process_group()
