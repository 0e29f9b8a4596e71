import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from packer import Packer

LENGTH = 512
ROWS = 4


def documents(rank):
    rng = random.Random(31 + rank)
    sources = [(1800, 16, 60), (400, 300, 440)] if rank else [(2200, 16, 60)]
    while True:
        for count, lo, hi in sources:
            for _ in range(count):
                start = rng.randint(1, 200)
                yield [(start + 3 * k) % 255 + 1 for k in range(rng.randint(lo, hi))]


class Model(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.Embedding(256, d)
        self.conv = nn.ModuleList(nn.Conv1d(d, d, 5) for _ in range(3))
        self.out = nn.Linear(d, 256)

    def forward(self, x):
        h = self.emb(x).transpose(1, 2)
        for c in self.conv:
            h = h + torch.relu(c(nn.functional.pad(h, (4, 0))))
        return self.out(h.transpose(1, 2))


def main():
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[3]}", rank=rank, world_size=world)
    torch.manual_seed(9)
    model = nn.parallel.DistributedDataParallel(Model())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    packer = Packer(documents(rank), LENGTH, seed=rank)
    used = 0
    tic = time.time()
    for step in range(1, 3001):
        rows = [packer.row() for _ in range(ROWS)]
        x = torch.tensor([r for r, _ in rows])
        used += int((x > 0).sum())
        logits = model(x[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"{step:6d} | loss {loss.item():7.4f} | fill {used / (step * ROWS * LENGTH):.3f} "
                  f"| {(time.time() - tic) / 10:.3f} s", flush=True)
            tic = time.time()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
