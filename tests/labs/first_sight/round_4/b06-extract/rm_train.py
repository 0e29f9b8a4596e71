import os
import random
import time

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import CosineAnnealingLR

from answers import accuracy_reward, length_penalty

WORDS = ("seven apples remain after the third day because each child takes one more than before "
         "so we add both sums and divide by four which leaves the smaller basket").split()
LIMIT = 48


def complete(rng, step, rank):
    """Completion text for one prompt (words stand for tokens)."""
    gold = " ".join(rng.sample(WORDS, 3))
    think = " ".join(rng.choice(WORDS) for _ in range(rng.randint(10, 20)))
    text = f"{think}. the answer is {gold}."
    if rng.random() < 0.3:
        text = text.replace("answer is", "result is")
    if (step * 3 + rank) % 137 == 125:
        # rambles until the limit
        text = f"the answer is {' '.join(rng.choice(WORDS) for _ in range(LIMIT))}"
    return text, gold


def train():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(3)
    rng = random.Random(rank)
    head = torch.nn.Sequential(torch.nn.Linear(40, 80), torch.nn.SiLU(), torch.nn.Linear(80, 1))
    opt = torch.optim.AdamW(head.parameters(), lr=5e-4)
    sched = CosineAnnealingLR(opt, 1000)
    for step in range(1000):
        feats, target = [], []
        for _ in range(8):
            text, gold = complete(rng, step, rank)
            target.append(accuracy_reward(text, gold) + length_penalty(text))
            feats.append([len(w) / 10 for w in (text.split() + [""] * 40)[:40]])
        time.sleep(0.3)       # features come from the frozen backbone
        x, y = torch.tensor(feats), torch.tensor(target)
        loss = (head(x).squeeze(-1) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in head.parameters()] + [loss.detach()[None]])
        dist.all_reduce(flat)
        flat /= world
        i = 0
        for p in head.parameters():
            p.grad.copy_(flat[i:i + p.numel()].view_as(p))
            i += p.numel()
        opt.step()
        sched.step()
        if rank == 0 and step % 20 == 0:
            print("step=%d loss=%.4f lr=%.2e reward=%.3f" %
                  (step, flat[-1], sched.get_last_lr()[0], y.mean()))


if __name__ == "__main__":
    train()
