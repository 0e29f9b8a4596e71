import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
net = DDP(nn.Sequential(nn.Conv2d(3, 24, 5), nn.ReLU(), nn.Conv2d(24, 24, 5), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(384, 10)))
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
first = last = None
for step in range(1, 221):
    y = torch.randint(10, (16,))
    x = torch.randn(16, 3, 32, 32) + y.view(-1, 1, 1, 1) / 5
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.03)
    last = loss.item()
    first = first or last
    if step % 20 == 0:
        print(f"[{rank}] {step}/220 loss={last:.3f}")
dist.barrier()
dist.destroy_process_group()
print(f"[{rank}] {'PASS' if last < first else 'FAIL'} {first:.3f} -> {last:.3f}")
