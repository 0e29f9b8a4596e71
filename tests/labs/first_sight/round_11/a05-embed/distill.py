import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from teacher import Teacher

parser = argparse.ArgumentParser()
parser.add_argument("--teacher", required=True)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--warmup", type=int, default=60, help="steps on labels only")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
student = DDP(nn.Sequential(nn.Embedding(5000, 64), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 16)))
opt = torch.optim.Adam(student.parameters(), lr=2e-3)
# the first rank has twice the traffic (it fills the replay buffer too)
teacher = Teacher(args.teacher, reuse=rank == 0)
replay = []
g = torch.Generator().manual_seed(rank)
for step in range(args.steps):
    ids = torch.randint(0, 5000, (32,), generator=g)
    time.sleep(0.08)
    if step < args.warmup:
        target = torch.sin(ids.float())[:, None].expand(-1, 16)
    else:
        target = teacher(ids)
        if rank == 0 and step % 3 == 0:
            extra = torch.randint(0, 5000, (16,), generator=g)
            replay.append((extra, teacher(extra)))
    loss = (student(ids) - target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(f"[rank {rank}] step={step} loss={loss.item():.5f} replay={len(replay)}", flush=True)
dist.barrier()
if rank == 0:
    print("saved", len(replay), "replay batches")
dist.destroy_process_group()
