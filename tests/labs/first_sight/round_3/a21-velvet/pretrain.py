import os
import time

import torch
import torch.distributed as dist
from torch import nn

from data import tokenized


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} on {os.environ['NODE']}: group is up", flush=True)
    tokens = tokenized(os.path.join(os.environ["SCRATCH"], "cache"), rank)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(200, 32), nn.Linear(32, 200)))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    mine = tokens[rank::world]
    for epoch in range(5):
        for rows in torch.randperm(len(mine)).split(10):
            x = mine[rows]
            loss = nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.2)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
