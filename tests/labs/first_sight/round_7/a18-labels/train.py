"""Active learning with a labelling service that takes one request per PERIOD from each client."""
import os
import random
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD, ROUNDS, PERIOD = 3, 4, 19.0


class Labels:
    def __init__(self, seed):
        self.w = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
        self.rng = random.Random(seed)
        self.next = time.monotonic()

    def ask(self, x):
        wait = self.next - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self.next = time.monotonic() + PERIOD + self.rng.uniform(-1, 1)
        return (x @ self.w).argmax(1)


def client(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29719")
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Linear(12, 3)
    opt = torch.optim.SGD(net.parameters(), 0.3)
    gen = torch.Generator().manual_seed(rank)
    labels = Labels(rank)
    history = []
    for _ in range(ROUNDS):
        pool = torch.randn(400, 12, generator=gen)
        with torch.no_grad():
            p = torch.softmax(net(pool), 1)
        ask = pool[(p * p.clamp_min(1e-9).log()).sum(1).topk(64, largest=False).indices]
        y = labels.ask(ask)
        loss = nn.functional.cross_entropy(net(ask), y)
        opt.zero_grad()
        loss.backward()
        for q in net.parameters():
            dist.all_reduce(q.grad)
            q.grad /= WORLD
        opt.step()
        history.append(round(loss.item(), 4))
    dist.barrier()
    if rank == 0:
        print("losses", history)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(client, nprocs=WORLD)
