import argparse
import os
import socket
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from tqdm import tqdm

from hard_examples import HardExamples

CLASSES = 12


def strip(rank, epoch, step, n=16):
    """Line images; those of the old scanner (rank 2) are noisy."""
    rng = np.random.default_rng((rank, epoch, step))
    y = rng.integers(0, CLASSES, n)
    x = np.zeros((n, 1, 32, 96), np.float32)
    for i, k in enumerate(y):
        x[i, 0, :, 8 * k:8 * k + 8] = 1
    x += rng.standard_normal(x.shape).astype(np.float32) * (4.0 if rank == 2 else 0.4)
    return x, y


def worker(rank, args, port):
    torch.set_num_threads(1)
    hard = HardExamples(os.path.join("hard", f"r{rank}"), limit=150)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.procs)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 23, CLASSES)))
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    for epoch in range(args.epochs):
        bar = tqdm(range(args.steps), desc=f"epoch {epoch}", disable=rank != 0, mininterval=1)
        for step in bar:
            x, y = strip(rank, epoch, step)
            losses = nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y), reduction="none")
            opt.zero_grad()
            losses.mean().backward()
            opt.step()
            for i in (losses > 0.5).nonzero().flatten().tolist():
                if epoch > 0:
                    hard.offer(f"{epoch}-{step:04d}-{i}", losses[i].item(), x[i])
            bar.set_postfix(loss=f"{losses.mean().item():.3f}", refresh=False)
            time.sleep(0.12)
    hard.close()
    dist.barrier()
    if rank == 0:
        torch.save(net.module.state_dict(), "ocr.pt")
        print("done: ocr.pt", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--procs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(worker, (arguments, free), nprocs=arguments.procs)
