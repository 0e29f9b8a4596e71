import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def save_shard(opt, rank, step):
    """Each rank keeps the part of the optimizer that it owns."""
    path = f"run/ckpt/rank{rank}.pt"
    torch.save({"step": step, "optim": opt.optim.state_dict()}, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--save-every", type=int, default=20)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    with open(f"run/rank{rank}.pid", "w") as f:
        f.write(str(os.getpid()))

    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))
    model = DDP(net)
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
    gen = torch.Generator().manual_seed(50 + rank)
    proj = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    begun = time.time()
    for step in range(args.steps):
        x = torch.randn(128, 64, generator=gen)
        loss = nn.functional.cross_entropy(model(x), (x @ proj).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.08)
        if step % args.save_every == 0:
            save_shard(opt, rank, step)
        if rank == 0 and step % 25 == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 4),
                              "elapsed": round(time.time() - begun, 1)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
