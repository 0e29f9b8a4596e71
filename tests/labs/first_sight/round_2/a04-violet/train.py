import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def load_part(plan, rank):
    part = plan["parts"][str(rank)]
    gen = torch.Generator().manual_seed(part["seed"])
    x = torch.randn(part["rows"], 24, generator=gen)
    return x, x.pow(2).mean(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with open(args.plan) as f:
        plan = json.load(f)
    rank = int(os.environ["RANK"])
    print(f"rank {rank}: reading", flush=True)
    x, y = load_part(plan, rank)
    print(f"rank {rank}: {len(x)} rows", flush=True)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=plan["lr"])
    for step in range(plan["steps"]):
        at = (step * 32) % (len(x) - 32)
        loss = nn.functional.mse_loss(model(x[at:at + 32]), y[at:at + 32])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
