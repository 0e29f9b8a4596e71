"""Population based training of two members; each exploits the other when that one does better."""
import os
import random
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class Member:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(rank)
        self.rng = random.Random(rank)
        self.net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1))
        self.lr = [0.02, 0.005][rank]
        self.best_seen = float("inf")

    def train(self, steps):
        opt = torch.optim.SGD(self.net.parameters(), self.lr)
        for _ in range(steps):
            x = torch.randn(16, 12)
            loss = (self.net(x).squeeze(1) - x[:, 0] * x[:, 1]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.04)
        self.best_seen = min(self.best_seen, loss.item())
        return loss.item()


def work(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    me = Member(rank)
    scores = [None, None]
    for gen in range(500):
        score = me.train(25)
        dist.all_gather_object(scores, {"last": score, "best": me.best_seen, "lr": me.lr})
        other = scores[1 - rank]
        src = rank if score <= other["best"] else 1 - rank
        if gen >= 15:
            parcel = [(me.net.state_dict(), me.lr)] if src == rank else [None]
            dist.broadcast_object_list(parcel, src=src)
            if src != rank:
                me.net.load_state_dict(parcel[0][0])
                me.lr = parcel[0][1] * me.rng.choice([0.8, 1.25])
        with open(f"member{rank}.csv", "a") as f:
            f.write(f"{gen},{score:.5f},{me.lr:.5f},{src}\n")


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(work, args=(port,), nprocs=2, start_method="spawn")
