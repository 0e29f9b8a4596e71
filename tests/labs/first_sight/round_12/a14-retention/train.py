import logging
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoints import CheckpointManager
from conf import Conf


def main():
    c = Conf()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=f"%(asctime)s r{rank} %(message)s")
    torch.manual_seed(12)
    net = nn.Sequential(nn.Linear(200, c.width), nn.ReLU(), nn.Linear(c.width, c.width), nn.ReLU(), nn.Linear(c.width, 20))
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=c.lr)
    target = torch.randn(200, 20, generator=torch.Generator().manual_seed(1)) / 14
    vx = torch.randn(512, 200, generator=torch.Generator().manual_seed(2))
    g = torch.Generator().manual_seed(rank + 10)
    manager = CheckpointManager(c.checkpoints, c.share_mb) if rank == 0 else None
    for step in range(1, c.steps + 1):
        x = torch.randn(32, 200, generator=g)
        loss = (model(x) - x @ target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % c.save_every == 0:
            with torch.no_grad():
                val = (net(vx) - vx @ target).square().mean()
            if manager:
                manager.save(net.state_dict(), step, val.item())
            dist.all_reduce(val)
            logging.info("step %d val %.5f", step, val.item() / world)
    dist.destroy_process_group()


main()
