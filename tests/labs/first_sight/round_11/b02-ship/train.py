import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=1000)
ap.add_argument("--width", type=int, default=96)
args = ap.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
encoder = nn.Sequential(nn.Linear(32, args.width), nn.GELU(), nn.Linear(args.width, 16))
decoder = nn.Sequential(nn.Linear(16, args.width), nn.GELU(), nn.Linear(args.width, 32))
params = [*encoder.parameters(), *decoder.parameters()]
opt = torch.optim.AdamW(params, lr=2e-3)
gen = torch.Generator().manual_seed(100 + rank)
basis = torch.randn(6, 32, generator=torch.Generator().manual_seed(7))

seen = 0
for step in range(1, args.steps + 1):
    start = time.perf_counter()
    x = torch.randn(64, 6, generator=gen) @ basis
    z = encoder(x)
    rec, kl = F.mse_loss(decoder(z), x), 1e-3 * z.pow(2).mean()
    opt.zero_grad()
    (rec + kl).backward()
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in params:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
    opt.step()
    seen += len(x)
    print(json.dumps({"rank": rank, "step": step, "rec": round(rec.item(), 5), "kl": round(kl.item(), 6),
                      "grad_norm": round(flat.norm().item(), 4), "z_mean": round(z.mean().item(), 4),
                      "z_std": round(z.std().item(), 4), "lr": opt.param_groups[0]["lr"], "samples": seen,
                      "ms": round(1e3 * (time.perf_counter() - start), 2)}))
dist.destroy_process_group()
