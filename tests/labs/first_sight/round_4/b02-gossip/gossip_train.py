"""Decentralised SGD: every round the workers form random pairs and average their weights.

All workers draw the same pairs because all seed the same generator.
"""
import argparse
import os
import random
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Caption(torch.utils.data.Dataset):
    def __init__(self, shard, n=1200):
        g = torch.Generator().manual_seed(shard)
        self.x = torch.randn(n, 32, generator=g)
        self.y = (self.x[:, :4].sum(1) > 0).long()
        self.names = [f"shard{shard:02d}/{i:05d}.jpg" for i in range(n)]

    def __len__(self):
        return len(self.names)

    def read(self, idx):
        time.sleep(0.12)   # decode
        return self.x[idx], self.y[idx]


def draw_partner(rank, workers):
    order = list(range(workers))
    random.shuffle(order)
    i = order.index(rank)
    return order[i ^ 1]


def average_with(partner, model):
    flat = parameters_to_vector(model.parameters()).detach()
    other = torch.empty_like(flat)
    reqs = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, flat, partner),
        dist.P2POp(dist.irecv, other, partner)])
    for r in reqs:
        r.wait()
    vector_to_parameters((flat + other) / 2, model.parameters())


def preview(data, rnd):
    picks = random.sample(range(len(data)), 3)
    print("[round %d] examples: %s" % (rnd, ", ".join(data.names[p] for p in picks)), flush=True)


def worker(rank, args, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=args.workers)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    data = Caption(rank)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    picker = torch.Generator().manual_seed(100 + rank)
    for rnd in range(1, args.rounds + 1):
        idx = torch.randint(0, len(data), (16,), generator=picker)
        x, y = data.read(idx)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        average_with(draw_partner(rank, args.workers), model)
        if rank == 0 and rnd % args.preview_every == 0:
            preview(data, rnd)
        if rnd % 40 == 0:
            print(f"w{rank} round={rnd} loss={loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--rounds", type=int, default=2000)
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument("--preview-every", type=int, default=150)
    args = p.parse_args()
    mp.spawn(worker, args=(args, free_port()), nprocs=args.workers)
    sys.exit(0)
