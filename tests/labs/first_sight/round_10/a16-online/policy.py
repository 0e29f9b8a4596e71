import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Inbox:
    def __init__(self, path, poll=2.0):
        self.path, self.poll, self.next = path, poll, 0

    def take(self):
        """Blocks until the next delivery is there."""
        name = os.path.join(self.path, f"{self.next:04d}.npz")
        while not os.path.exists(name):
            time.sleep(self.poll)
        self.next += 1
        with np.load(name) as z:
            return {k: torch.from_numpy(z[k]) for k in z.files}


def update(q, opt, data, rank, world, steps, gen):
    n = len(data["obs"])
    losses = []
    for _ in range(steps):
        idx = torch.randint(0, n // world, (64,), generator=gen) * world + rank
        value = q(data["obs"][idx]).gather(1, data["act"][idx, None].long()).squeeze(1)
        loss = nn.functional.mse_loss(value, data["rew"][idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def main(inbox, rounds):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    q = DDP(nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)))
    opt = torch.optim.Adam(q.parameters(), 1e-3)
    gen = torch.Generator().manual_seed(rank)
    box = Inbox(inbox)
    history = []
    for _ in range(rounds):
        history.append(update(q, opt, box.take(), rank, world, 150, gen))
    if rank == 0:
        torch.save({"q": q.module.state_dict(), "history": history}, "policy.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
