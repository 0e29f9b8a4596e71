import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from governor import Governor

dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
torch.manual_seed(rank)
model = DDP(nn.LSTM(64, 160, batch_first=True))
opt = torch.optim.Adam(model.parameters())
governor = Governor()
for step in range(1, 201):
    out, _ = model(torch.randn(16, 32, 64))
    loss = out.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 1 and step % 40 == 0:
        print({"step": step, "loss": round(loss.item(), 5)}, flush=True)
    if step < 200:
        governor.step()
dist.barrier()
dist.destroy_process_group()
