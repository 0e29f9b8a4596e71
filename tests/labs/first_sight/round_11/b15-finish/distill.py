import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from export import export


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=Path, default=Path("out"))
    ap.add_argument("--steps", type=int, default=500)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(40, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 12)).requires_grad_(False)
    student = DDP(nn.Sequential(nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 12)))
    opt = torch.optim.Adam(student.parameters(), 3e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, a.steps + 1):
        x = torch.randn(128, 40, generator=g)
        loss = nn.functional.kl_div(student(x).log_softmax(-1), teacher(x).softmax(-1), reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 and rank == 0:
            pct = 100 * step // a.steps
            print(f"{pct:3d}%|{'=' * (pct // 5):<20}| kl={loss.item():.4f}")
    export(student.module, a.out, rank, world, a.steps)
    dist.destroy_process_group()


main()
