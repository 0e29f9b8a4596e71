import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import pack


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cache", default="cache")
    ap.add_argument("--docs", type=int, default=1900)
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    path = os.path.join(args.cache, f"packed-{args.docs}.bin")
    if rank == 0 and not os.path.exists(path):
        os.makedirs(args.cache, exist_ok=True)
        pack.build(path, args.docs)
    dist.barrier()

    data = torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int64))
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(
        nn.Embedding(512, 32), nn.Flatten(), nn.Linear(32 * 16, 128), nn.Tanh(), nn.Linear(128, 512)))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        at = torch.randint(0, len(data) - 17, (64,), generator=gen)
        chunk = torch.stack([data[a:a + 17] for a in at])
        loss = nn.functional.cross_entropy(model(chunk[:, :16]), chunk[:, 16])
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if rank == 0 and step % 40 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
