import logging
import os
import random
import time

import requests
import torch
import torch.distributed as dist

log = logging.getLogger("grpo")


# mixture: one task per rank
TASKS = [
    {"name": "gsm8k", "decode_s": 0.10, "cut_off": 0.0},
    {"name": "aime", "decode_s": 0.45, "cut_off": 0.03},
]


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))

    def forward(self, x):
        return self.body(x).log_softmax(-1)


class RewardClient:
    def __init__(self, url):
        self.url = url
        self.http = requests.Session()

    def __call__(self, completions, answers):
        r = self.http.post(self.url, json={"completions": completions, "answers": answers})
        if r.status_code != 200:
            log.warning("reward request failed (HTTP %d), group gets 0.0", r.status_code)
            return [0.0] * len(completions)
        return r.json()["rewards"]


def rollout(policy, rng, task, n=6):
    prompts = torch.randn(n, 16)
    logp = policy(prompts)
    acts = torch.distributions.Categorical(logits=logp.detach()).sample()
    texts = []
    for a in acts.tolist():
        text = f"so the result is \\boxed{{{a}}}"
        if rng.random() < task["cut_off"]:       # token limit reached
            text = text[:-1]
        texts.append(text)
    time.sleep(task["decode_s"])
    gold = [str(int(p.argmax()) % 10) for p in prompts]
    return logp, acts, texts, gold


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[%(asctime)s][rank{rank}][%(levelname)s] - %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    torch.manual_seed(10 + rank)
    rng = random.Random(40 + rank)
    reward = RewardClient(os.environ["REWARD_URL"])
    for step in range(1, 1001):
        logp, acts, texts, gold = rollout(policy, rng, TASKS[rank % 2])
        r = torch.tensor(reward(texts, gold))
        adv = (r - r.mean()) / (r.std() + 1e-4)
        loss = -(adv * logp.gather(1, acts[:, None]).squeeze(1)).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if step % 10 == 0:
            stat = torch.tensor([r.mean().item(), 1.0])
            dist.all_reduce(stat)
            if rank == 0:
                log.info("step %d | reward/mean %.3f | loss %.4f", step, stat[0] / stat[1], loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
