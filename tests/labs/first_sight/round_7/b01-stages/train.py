import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from stages import Pipeline, build_stage


def dataset(n):
    g = torch.Generator().manual_seed(7)
    x = torch.randn(n, 32, generator=g)
    return TensorDataset(x, (x[:, :10] * 2 + x[:, 10:20]).argmax(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--micro-batches", type=int, default=8)
    ap.add_argument("--samples", type=int, default=4106)
    args = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)
    pipe = Pipeline(build_stage(rank, world), rank, world, args.micro_batches)
    opt = torch.optim.AdamW(pipe.module.parameters(), 1e-3)
    loader = DataLoader(dataset(args.samples), args.batch_size, shuffle=True,
                        generator=torch.Generator().manual_seed(0))
    for epoch in range(args.epochs):
        start = time.time()
        for i, (x, t) in enumerate(loader):
            opt.zero_grad()
            loss = pipe.step(x if pipe.first else None, t if pipe.last else None)
            opt.step()
            time.sleep(0.06)
            if pipe.last and i % 10 == 0:
                print(f"epoch {epoch} [{i:3d}/{len(loader)}] loss {loss:.4f} "
                      f"{(i + 1) * args.batch_size / (time.time() - start):.0f} samples/s", flush=True)
        os.makedirs("out", exist_ok=True)
        torch.save(pipe.module.state_dict(), f"out/stage{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
