"""Per-site training: every rank reads its own site's records, sites differ in size (Join)."""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

SITES = {0: 23, 1: 12, 2: 9}  # batches per site
EPOCHS = 2


def records(rank, epoch):
    g = torch.Generator().manual_seed(epoch * 31 + rank)
    for _ in range(SITES[rank]):
        time.sleep(2.2)  # decryption of one block of records
        x = torch.randn(64, 40, generator=g)
        yield x, x[:, :2].prod(1, keepdim=True)


def site_main(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(SITES))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(40, 128), nn.Tanh(), nn.Linear(128, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        total, n = 0.0, 0
        with Join([model]):
            for x, y in records(rank, epoch):
                loss = nn.functional.mse_loss(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                total, n = total + loss.item(), n + 1
        sums = torch.tensor([total, float(n)])
        dist.all_reduce(sums)
        print(f"<site {rank}> epoch {epoch + 1}/{EPOCHS} own {total / n:.4f} all {(sums[0] / sums[1]).item():.4f}", file=sys.stderr, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(site_main, args=(port,), nprocs=len(SITES), start_method="spawn")
