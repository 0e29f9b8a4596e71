import copy
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from lr_range import RangeTest
from sensors import stream

dist.init_process_group("gloo")
rank = dist.get_rank()
logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
log = logging.getLogger()
torch.manual_seed(2)


def build():
    return nn.Sequential(nn.Linear(128, 640), nn.Tanh(), nn.Linear(640, 640), nn.Tanh(), nn.Linear(640, 1))


net = build()
start = copy.deepcopy(net.state_dict())
model = DDP(net)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = stream(rank)
log.info("looking for a learning rate")
lr = RangeTest(model, opt, nn.functional.mse_loss).run(data)
log.info("learning rate %.5f", lr)
net.load_state_dict(start)
for group in opt.param_groups:
    group["lr"] = lr
for step in range(1, 1001):
    x, y = next(data)
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        log.info("step %d loss %.4f", step, loss.item())
dist.destroy_process_group()
