import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import staging

t = time.time()
rank = int(os.environ["RANK"])
with open(staging.stage(rank)) as f:
    x = torch.tensor([[float(v) for v in line.split()] for line in f.readlines()[:4000]])
print(f"rank {rank}: staged in {time.time() - t:.0f} s", flush=True)
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1)))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
y = x[:, :4].sum(1, keepdim=True).sin()
for epoch in range(12):
    for idx in torch.randperm(len(x)).split(100):
        loss = nn.functional.mse_loss(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"rank {rank}: epoch {epoch} loss {loss.item():.4f} after {time.time() - t:.0f} s", flush=True)
dist.destroy_process_group()
