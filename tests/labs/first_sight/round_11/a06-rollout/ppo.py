import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from arm import simulate


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean = nn.Linear(64, 2)
        self.value = nn.Linear(64, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.mean(h), self.value(h).squeeze(-1)


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    ctx = mp.get_context("spawn")
    weights, episodes = ctx.Queue(), ctx.Queue()
    arm = ctx.Process(target=simulate, args=(rank, weights, episodes), daemon=True)
    arm.start()
    for update in range(4):
        weights.put({k: v.numpy().copy() for k, v in policy.state_dict().items()})
        obs, act, ret = (torch.from_numpy(a) for a in episodes.get())
        for _ in range(4):
            mean, value = policy(obs)
            logp = -0.5 * ((act - mean) / 0.2).pow(2).sum(-1)
            adv = (ret - value).detach()
            loss = -(logp * adv).mean() + (ret - value).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            average(policy)
            opt.step()
        if rank == 0:
            print(f"{time.strftime('%H:%M:%S')} update {update} return {ret.mean():.3f}", flush=True)
    weights.put(None)
    arm.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
