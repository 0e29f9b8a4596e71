import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn

from bucket import Bucket


def build():
    torch.manual_seed(3)
    return nn.ModuleDict({
        "up": nn.Linear(128, 256), "down": nn.Linear(256, 128), "embed": nn.Embedding(2600, 128),
    })


def owned(model, rank):
    """Every rank saves one module of the model."""
    return list(model.items())[rank]


def forward(model, ids):
    h = model["embed"](ids).mean(1)
    return h + model["down"](torch.relu(model["up"](h)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--save-every", type=int, default=20)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    bucket = Bucket("exp-117")
    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(1, args.steps + 1):
        t0 = time.perf_counter()
        ids = torch.randint(0, 2600, (24, 40), generator=gen)
        time.sleep(0.12)
        loss = forward(model, ids).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 5),
                              "ms": round(1e3 * (time.perf_counter() - t0))}), flush=True)
        if step % args.save_every == 0:
            name, module = owned(model, rank)
            size = bucket.put_tensors(name, step, module.state_dict())
            sizes = [None] * dist.get_world_size()
            dist.all_gather_object(sizes, size)
            if rank == 0:
                print(json.dumps({"step": step, "saved_bytes": sum(sizes)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
