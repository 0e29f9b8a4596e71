import asyncio
import os
import random
import string
import sys

import torch
import torch.distributed as dist
import torch.nn as nn

from rewards import RewardClient

MAXLEN = (300, 620)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 26), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def rollout(policy, obs, rng, longest):
    with torch.no_grad():
        dist_, value = policy(obs)
        act = dist_.sample()
        logp = dist_.log_prob(act)
    texts = [string.ascii_lowercase[a] * rng.randint(100, longest) for a in act.tolist()]
    return act, logp, value, texts


def main(port):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    rng = random.Random(rank)
    policy = Policy()
    for p in policy.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    client = RewardClient(port)
    for it in range(1, 1001):
        # responses get longer on the second prompt set as the policy learns
        longest = min(MAXLEN[rank % 2], 300 + 4 * it)
        obs = torch.randn(8, 16)
        act, logp, value, texts = rollout(policy, obs, rng, longest)
        reward = torch.tensor(loop.run_until_complete(client.score_all(texts)))
        adv = reward - value
        for _ in range(2):
            d, v = policy(obs)
            ratio = (d.log_prob(act) - logp).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(.8, 1.2) * adv).mean() + .5 * (v - reward).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            for p in policy.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            opt.step()
        if it % 5 == 0:
            print(f"[{rank}] it={it} reward={reward.mean():.3f} loss={loss.item():.3f} longest={longest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
