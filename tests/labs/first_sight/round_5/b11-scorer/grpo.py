import os
import time
from concurrent.futures import ThreadPoolExecutor

import requests
import torch
import torch.nn as nn
import torch.distributed as dist

GROUP, LENGTH, VOCAB = 4, 6, 512


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.rnn = nn.GRU(64, 128, batch_first=True)
        self.out = nn.Linear(128, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])

    @torch.no_grad()
    def sample(self, prompt, n, temperature):
        ids = prompt.repeat(n, 1)
        for _ in range(LENGTH):
            logits = self(ids)[:, -1] / temperature
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
        return ids


class Reward:
    def __init__(self, url):
        self.url = url
        self.session = requests.Session()
        self.pool = ThreadPoolExecutor(GROUP)

    def one(self, tokens):
        r = self.session.post(self.url + "/score", json={"tokens": tokens})
        r.raise_for_status()
        return r.json()["reward"]

    def __call__(self, rows):
        rows, inverse = torch.unique(rows, dim=0, return_inverse=True)
        return torch.tensor(list(self.pool.map(self.one, rows.tolist())))[inverse]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), 3e-3)
    reward = Reward(os.environ["REWARD_URL"])
    gen = torch.Generator().manual_seed(50 + rank)
    prompts = torch.randint(0, VOCAB, (40, 5), generator=gen)
    for step in range(600):
        prompt = prompts[step % len(prompts)]
        rows = policy.sample(prompt, GROUP, temperature=max(0.05, 0.94 ** step))
        rewards = reward(rows)
        advantage = rewards - rewards.mean()
        logp = policy(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)[:, -LENGTH:].sum(1)
        loss = -(advantage * logp).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        time.sleep(0.3)
        if step % 5 == 0:
            print(f"[rank {rank}] step={step} reward={rewards.mean():+.4f} loss={loss.item():+.4f}", flush=True)


if __name__ == "__main__":
    main()
