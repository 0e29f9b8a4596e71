import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=1000)
args = ap.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 12))
        self.up = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 100))

    def forward(self, x):
        return self.up(self.down(x))


model = DDP(AutoEncoder())
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
basis = torch.randn(10, 100)
gen = torch.Generator().manual_seed(rank)
t = time.time()
for step in range(args.steps):
    x = torch.randn(64, 10, generator=gen) @ basis
    loss = nn.functional.mse_loss(model(x), x)
    opt.zero_grad()
    loss.backward()
    norms = {n: round(p.grad.norm().item(), 5) for n, p in model.module.named_parameters()}
    opt.step()
    # every rank writes its own line: the grad norms are compared later
    print(json.dumps({"rank": rank, "step": step, "loss": round(loss.item(), 5), "t": round(time.time() - t, 2),
                      "grad": norms}), flush=True)
dist.destroy_process_group()
