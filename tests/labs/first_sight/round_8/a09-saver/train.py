import argparse
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from data import Source, batch
from saver import ShardSaver

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=1000)
p.add_argument("--save-every", type=int, default=40)
args = p.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
box = [tempfile.mkdtemp(prefix="shards-") if rank == 0 else None]
dist.broadcast_object_list(box)
saver = ShardSaver(box[0])
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(20, 256), nn.SiLU(), nn.Linear(256, 1)))
opt = torch.optim.Adam(model.parameters(), 1e-3)
source = Source(rank)
start = time.time()
for step in range(1, args.steps + 1):
    x, y = batch(source, 8)
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.06)
    if step % 20 == 0 and rank == 0:
        print(f"{time.time() - start:7.1f}s  {step:5d}  {loss.item():.5f}", flush=True)
    if step % args.save_every == 0:
        saver.save(step, {"model": {k: v.clone() for k, v in model.module.state_dict().items()},
                          "opt": opt.state_dict(), "source": source.state(), "step": step})
saver.close()
dist.destroy_process_group()
