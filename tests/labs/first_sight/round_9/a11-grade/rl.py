import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from answers import generate
from grading import Grader


def main():
    grader = Grader()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy = DDP(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8)))
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    step = 0
    for round_ in range(200):
        reward = torch.tensor(grader.score(generate(rank, round_)))
        mean = reward.clone()
        dist.all_reduce(mean)
        for _ in range(20):
            x = torch.randn(32, 16)
            logp = policy(x).log_softmax(1)
            loss = -(logp[:, 0] * (reward - mean / world + 0.1)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            time.sleep(0.12)
        if rank == 0:
            print(f"round {round_} | step {step} | reward {mean.item() / world:.3f} | loss {loss.item():+.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
