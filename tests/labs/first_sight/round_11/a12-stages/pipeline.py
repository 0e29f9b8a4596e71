import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

from schedule import Stage

WIDTH, MICRO, CHUNKS, EPOCHS = 128, 8, 4, 5


def tables(n=3608):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, WIDTH, generator=g)
    return x, (x[:, :16].sum(1) > 0).long()


def block():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = nn.Sequential(block(), nn.Linear(WIDTH, 2)) if rank == world - 1 else block()
    opt = torch.optim.AdamW(module.parameters(), 5e-4)
    stage = Stage(module, WIDTH, MICRO, CHUNKS)
    x, y = tables()
    order = torch.Generator().manual_seed(42)
    for epoch in range(EPOCHS):
        loader = DataLoader(TensorDataset(x, y), batch_size=MICRO * CHUNKS, shuffle=True, generator=order)
        t, last = time.time(), 0.0
        for i, (bx, by) in enumerate(loader):
            time.sleep(0.1)
            opt.zero_grad()
            last = stage.step(bx, by, nn.functional.cross_entropy)
            opt.step()
            if rank == world - 1 and i % 16 == 0:
                print(f"epoch {epoch} [{i}/{len(loader)}] loss {last:.4f} ({time.time() - t:.1f} s)", flush=True)
        dist.barrier()
    dist.destroy_process_group()


main()
