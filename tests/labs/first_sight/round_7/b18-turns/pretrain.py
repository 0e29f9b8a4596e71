import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import shards


def main(rank, world, folder, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    table = nn.EmbeddingBag(90000, 96, sparse=True)
    head = nn.Linear(96, 8)
    opt = torch.optim.SGD(list(table.parameters()) + list(head.parameters()), 0.5)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 91):
        x = torch.randint(0, 90000, (64, 10), generator=g)
        loss = nn.functional.cross_entropy(head(table(x)), x[:, 0] % 8)
        opt.zero_grad()
        loss.backward()
        for p in head.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        time.sleep(0.05)
        if step % 60 == 0:
            shards.save(folder, step, [table.weight])
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tables-") as folder:
        mp.spawn(main, args=(2, folder, 29818), nprocs=2)
