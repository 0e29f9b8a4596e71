import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from save import Keeper

p = argparse.ArgumentParser()
p.add_argument("--depth", type=int, default=16)
p.add_argument("--width", type=int, default=48)
p.add_argument("--steps", type=int, default=600)
p.add_argument("--save-steps", type=int, default=40)
args = p.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(w), nn.Linear(w, 2 * w), nn.Linear(2 * w, w)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


model = nn.Sequential(*[Block(args.width) for _ in range(args.depth)])
ddp = DDP(model)
opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
keeper = Keeper(f"/tmp/ckpt-{os.getppid()}")
for step in range(1, args.steps + 1):
    x = torch.randn(64, args.width)
    loss = (ddp(x) - x.cumsum(1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0 and step % 10 == 0:
        print(f"{{'loss': {loss.item():.4f}, 'epoch': {step / args.steps:.2f}, 'step': {step}}}", flush=True)
    if step % args.save_steps == 0:
        keeper.save(model, opt, step)
        if rank == 0:
            print(f"Saving model checkpoint to {keeper.folder}/step_{step:06d}", flush=True)
keeper.clean()
dist.destroy_process_group()
