import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardcache import ShardCache


class Rows(torch.utils.data.Dataset):
    def __init__(self, order, rank, world):
        self.order = order[rank::world]

    def __len__(self):
        return len(self.order)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(int(self.order[i]))
        x = torch.randn(48, generator=g)
        return x, (x[:8].sum() > 0).float()


def first_on_rank_zero(make, rank):
    if rank == 0:
        made = make()
    dist.barrier()
    if rank != 0:
        made = make()
    return made


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    cache = ShardCache(os.path.join("scratch", os.environ.get("TORCHELASTIC_RUN_ID", "local")), rank)
    model = DDP(nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.SGD(model.parameters(), 0.02)
    for epoch in range(50):
        order = first_on_rank_zero(lambda: cache.epoch(epoch), rank)
        loader = torch.utils.data.DataLoader(Rows(order, rank, world), batch_size=16)
        total = 0.0
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            time.sleep(0.1)
        if rank == 0:
            print(f"epoch {epoch} finished, mean loss {total / (i + 1):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
