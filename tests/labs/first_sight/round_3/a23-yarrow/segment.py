import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from volumes import Volumes


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(32, 3))
    net = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    loader = DataLoader(Volumes(rank, 30), batch_size=1, num_workers=1, multiprocessing_context="spawn", prefetch_factor=2)
    losses = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    dist.barrier()
    if rank == 0:
        with open("losses.txt", "w") as f:
            f.write("\n".join(f"{v:.5f}" for v in losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
