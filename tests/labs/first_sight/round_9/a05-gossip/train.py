"""Local SGD with three ranks: averages over all of them at first, over neighbours later on."""
import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from gossip import Ring, mix_all


def batches(rank, size=16):
    g = torch.Generator().manual_seed(100 + rank)
    w = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    while True:
        x = torch.randn(size, 24, generator=g)
        yield x, (x @ w).argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--mix-every", type=int, default=4)
    ap.add_argument("--dense-until", type=int, default=120)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    ring = Ring(rank, world)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(24, 96), nn.SiLU(), nn.LayerNorm(96), nn.Linear(96, 3))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    for step, (x, y) in enumerate(batches(rank), 1):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        if step % args.mix_every == 0:
            if step <= args.dense_until:
                mix_all(model, world)
            else:
                ring.mix(model)
        if step % 8 == 0:
            print(json.dumps({"rank": rank, "step": step, "loss": round(loss.item(), 4)}), flush=True)
        time.sleep(0.15)
        if step == args.steps:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
