import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from text import Messages


def train(rank, world):
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s,rank{rank},%(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    loader = DataLoader(Messages(range(rank, 4000, world)), batch_size=8, num_workers=1,
                        collate_fn=lambda rows: (torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])))
    model = DistributedDataParallel(nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x)[:, 0], y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.15)
            if step % 10 == 0:
                logging.info("epoch %d,step %d,loss %.4f", epoch, step, loss.item())
    dist.destroy_process_group()
