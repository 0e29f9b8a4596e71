import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from lora import build
from packing import pack

ap = argparse.ArgumentParser()
ap.add_argument("--export", required=True)
ap.add_argument("--steps", type=int, default=400)
args = ap.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
net = build()
model = DDP(net)
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)
gen = torch.Generator().manual_seed(rank)
proj = torch.randn(384, 64, generator=torch.Generator().manual_seed(99)) / 20
for step in range(1, args.steps + 1):
    x = torch.randn(16, 384, generator=gen)
    loss = nn.functional.mse_loss(model(x), x @ proj)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0 and rank == 0:
        print(f"{step} {loss.item():.5f}", flush=True)
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    pack(net, args.export)
    print("exported", flush=True)
