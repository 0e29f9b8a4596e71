import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from telemetry import Telemetry, layer_stats


class LoRALinear(nn.Module):
    def __init__(self, d_in, d_out, r=8):
        super().__init__()
        self.base = nn.Linear(d_in, d_out)
        self.base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(d_in, r) * 0.02)
        self.b = nn.Parameter(torch.zeros(r, d_out))

    def forward(self, x):
        return self.base(x) + x @ self.a @ self.b


class Net(nn.Module):
    def __init__(self, dim=256, depth=6, classes=20):
        super().__init__()
        self.inp = nn.Linear(64, dim)
        self.layers = nn.ModuleList(LoRALinear(dim, dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.head(h)


def batches(rank, size=64):
    g = torch.Generator().manual_seed(100 + rank)
    centres = torch.randn(20, 64, generator=torch.Generator().manual_seed(1))
    while True:
        y = torch.randint(0, 20, (size,), generator=g)
        yield centres[y] + 0.8 * torch.randn(size, 64, generator=g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1500)
    ap.add_argument("--out", default="out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    os.makedirs(args.out, exist_ok=True)
    model = DDP(Net())
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    tele = Telemetry(os.path.join(args.out, "stats.jsonl")) if rank == 0 else None
    bar_width, t0 = 30, time.time()
    for step, (x, y) in enumerate(batches(rank), 1):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.2)                       # augmentation, in the real job
        if rank == 0:
            tele.record(step, {"loss": loss.item(), "lr": opt.param_groups[0]["lr"],
                               "elapsed": time.time() - t0}, layer_stats(model.module))
            done = int(bar_width * step / args.steps)
            print(f"\r[{'#' * done}{'.' * (bar_width - done)}] {step}/{args.steps} loss={loss.item():.3f}",
                  end="", flush=True)
        if step % 200 == 0:
            if rank == 0:
                torch.save(model.module.state_dict(), os.path.join(args.out, f"lora-{step}.pt"))
            dist.barrier()
        if step == args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
