"""Tables shared by two ranks each: who shares a table averages it after every step."""
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 3
TABLES = {"north": (0, 1), "east": (1, 2), "south": (0, 2)}
STEPS = 400


def traffic(rank, step):
    """How often each table of this rank is asked for, by the access log."""
    if step < 90:
        weight = {"north": 9, "east": 6, "south": 3}
    else:
        weight = {0: {"south": 8, "north": 5}, 1: {"north": 8, "east": 5}, 2: {"east": 8, "south": 5}}[rank]
    return {name: weight[name] * 40 for name, members in TABLES.items() if rank in members}


def run(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    groups = {name: dist.new_group(list(members)) for name, members in TABLES.items()}
    torch.manual_seed(0)
    tables = {name: nn.Embedding(500, 16) for name, members in TABLES.items() if rank in members}
    head = nn.Linear(16, 1)
    opt = torch.optim.SGD([*head.parameters(), *(p for t in tables.values() for p in t.parameters())], lr=0.1)
    hits = dict.fromkeys(tables, 0.0)
    for step in range(STEPS):
        loss = 0
        for name, count in traffic(rank, step).items():
            ids = torch.randint(500, (count,))
            loss = loss + (head(tables[name](ids)).squeeze(1) - ids / 500).pow(2).mean()
            hits[name] = 0.9 * hits[name] + count
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for name in sorted(tables, key=hits.get, reverse=True):  # the busiest first
                dist.all_reduce(tables[name].weight, group=groups[name])
                tables[name].weight /= 2
        time.sleep(0.1)
        if step % 50 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(run, args=(port,), nprocs=WORLD)
