import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from pool import ActorPool

ENVS = [{"name": "pole", "horizon": 16, "obs": 8, "delay": 0.08},
        {"name": "maze", "horizon": 100, "obs": 3072, "delay": 0.0}]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    env = ENVS[rank % 2]
    policy = nn.Linear(8, 4)
    opt = torch.optim.Adam(policy.parameters(), 1e-2)
    pool = ActorPool(env, 2, seed=1000 * rank)
    weights = lambda: policy.weight.detach().t().contiguous().numpy().copy()
    pool.start(weights())
    turn = 0
    for update in range(1, 3001):
        obs, act, rew = pool.episode()
        obs = torch.from_numpy(obs)[:, :8]
        logp = torch.distributions.Categorical(logits=policy(obs)).log_prob(torch.from_numpy(act))
        loss = -(logp * torch.from_numpy(rew - rew.mean())).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        time.sleep(0.05)
        if update % 25 == 0:
            print(f"{env['name']:5s} update {update} return {rew.mean():.3f}", flush=True)
        if update % 60 == 0:
            pool.renew(turn % 2, weights())
            turn += 1
    pool.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
