import itertools
import json
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import StreamingRows

WORKERS = 2
STEPS = 60

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)

where = [os.path.join(tempfile.mkdtemp(prefix="rows-"), "epoch_barrier") if rank == 0 else None]
dist.broadcast_object_list(where, src=0)
data = StreamingRows(rank, world, WORKERS, where[0])
if rank == 0:
    data.barrier.create()
dist.barrier()

net = DDP(nn.Sequential(nn.Linear(24, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1)))
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for epoch in range(6):
    data.epoch = epoch
    loader = DataLoader(data, batch_size=16, num_workers=WORKERS, multiprocessing_context="fork")
    total = torch.zeros(())
    for x, y in itertools.islice(loader, STEPS):
        loss = nn.functional.smooth_l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    if rank == 0:
        print(json.dumps({"epoch": epoch, "steps": STEPS, "loss": round(total.item() / STEPS, 4)}), flush=True)
dist.destroy_process_group()
