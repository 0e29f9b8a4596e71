import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import table

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=600)
p.add_argument("--refresh", type=int, default=60)
p.add_argument("--examples", type=int, default=4000)
p.add_argument("--table", default="out/weights.bin")
args = p.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
g = torch.Generator().manual_seed(0)
X = torch.randn(args.examples, 40, generator=g)
Y = (X[:, :6].sum(1) + 0.5 * X[:, 7] * X[:, 8] > 0).long()
if rank == 0:
    os.makedirs(os.path.dirname(args.table), exist_ok=True)
    table.create(args.table, [1.0] * args.examples)
dist.barrier()
weights = table.WeightTable(args.table)
draw = torch.tensor(weights.wait(0))
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
model = DDP(net)
opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
mine = torch.Generator().manual_seed(100 + rank)
for step in range(1, args.steps + 1):
    pick = torch.multinomial(draw, 64, replacement=True, generator=mine)
    loss = F.cross_entropy(model(X[pick]), Y[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % args.refresh == 0:
        if rank == 0:
            with torch.no_grad():
                each = F.cross_entropy(net(X), Y, reduction="none")
            weights.publish((each + 0.05).tolist())
            sys.stdout.write("%d/%d  mean nll %.4f  hardest %.3f\n" % (step, args.steps, each.mean(), each.max()))
            sys.stdout.flush()
        draw = torch.tensor(weights.wait(step // args.refresh))
dist.barrier()
dist.destroy_process_group()
