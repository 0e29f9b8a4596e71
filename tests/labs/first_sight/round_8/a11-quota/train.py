import os

import torch
import torch.distributed as dist
import torch.nn as nn

from governor import PowerGovernor

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(2)
net = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
head = nn.Linear(32, 5)
params = [*net.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, 5e-4)
gen = torch.Generator().manual_seed(50 + rank)
gov = PowerGovernor(window=18.0 + 5 * rank, burst=0.5)
total, rests = 0.0, 0
step = 0
while rests < 5:
    x = torch.randn(16, 24, 32, generator=gen)
    y = (x.mean((1, 2)) * 20).long().clamp(-2, 2) + 2
    loss = nn.functional.cross_entropy(head(net(x).mean(1)), y)
    opt.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    at = 0
    for p in params:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p) / world)
        at += p.numel()
    opt.step()
    step += 1
    rested = torch.tensor(float(gov.pace()))
    dist.all_reduce(rested, op=dist.ReduceOp.MAX)
    if rested.item():
        rests += 1
        if rank == world - 1 and rests == 3:
            print(f"{step} steps, loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
