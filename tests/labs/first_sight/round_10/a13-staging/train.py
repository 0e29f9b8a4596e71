import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import stage


def load(local):
    arrays = [np.load(os.path.join(local, n)) for n in sorted(os.listdir(local)) if n.endswith(".npy")]
    return torch.from_numpy(np.concatenate(arrays).astype("float32"))


def net(width):
    return nn.Sequential(nn.Linear(width - 1, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--remote", default="remote")
    ap.add_argument("--local", required=True, help="this node's disk")
    ap.add_argument("--rate", type=float, default=120e3)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=64)
    a = ap.parse_args()
    torch.set_num_threads(1)

    stage.pull(a.remote, a.local, a.rate)
    data = load(a.local)

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = DDP(net(data.shape[1]))
    opt = torch.optim.RMSprop(model.parameters(), 1e-4)
    for epoch in range(a.epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        mine = order[rank::world]
        mine = mine[: len(order) // world // a.batch * a.batch]
        total = torch.zeros(1)
        for idx in mine.split(a.batch):
            rows = data[idx]
            loss = nn.functional.smooth_l1_loss(model(rows[:, :-1]), rows[:, -1:])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: {total.item() / len(order) * a.batch:.5f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
