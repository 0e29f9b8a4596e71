import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from textdata import Pages


class CharLM(nn.Module):
    def __init__(self, dim=80):
        super().__init__()
        self.emb = nn.Embedding(256, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, 256)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def bar(done, total, loss):
    k = 30 * done // total
    print(f"\r{100 * done // total:3d}%|{'#' * k}{' ' * (30 - k)}| {done}/{total} loss={loss:.3f}", end="", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Pages()
    sampler = DistributedSampler(data, world, rank, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, prefetch_factor=2, drop_last=True)
    model = DDP(CharLM())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for step, x in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 and step % 10 == 0:
                bar(step, len(loader), loss.item())
        if rank == 0:
            torch.save(model.module.state_dict(), os.path.join("/tmp", f"charlm-{os.getppid()}.pt"))
            print()
    dist.destroy_process_group()
