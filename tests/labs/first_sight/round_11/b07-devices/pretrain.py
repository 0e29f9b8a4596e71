import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=3000)
p.add_argument("--hidden", type=int, default=128)
a = p.parse_args()
torch.set_num_threads(int(os.environ["TORCH_NUM_THREADS"]))
print(f"{os.environ['DEVICE']}: rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
dist.init_process_group("gloo")

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, a.hidden), nn.SiLU(), nn.Linear(a.hidden, 64))
model = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.AdamW(net.parameters())
gen = torch.Generator().manual_seed(dist.get_rank())
for step in range(a.steps):
    x = torch.randn(64, 64, generator=gen)
    loss = nn.functional.mse_loss(model(x * (torch.rand(64, 64, generator=gen) > 0.3)), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(f"{step:6d} {loss.item():.4f}", flush=True)
dist.destroy_process_group()
