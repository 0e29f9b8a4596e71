import sys
import time

import torch
import torch.nn as nn
import torch.distributed as dist

from tasks import make_tasks, reward

VOCAB, K = 256, 4
SEED = 7


class LM(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim * 2, num_layers=2, batch_first=True)
        self.head = nn.Linear(dim * 2, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.wte(ids))[0])


@torch.no_grad()
def complete(model, task, temperature):
    ids = list(task["prompt"])
    bias = torch.zeros(VOCAB)
    if task["allowed"]:
        bias.fill_(float("-inf"))
        bias[task["allowed"]] = 0
    for _ in range(task["max_new"]):
        logits = model(torch.tensor([ids]))[0, -1] / temperature + bias
        ids.append(int(torch.multinomial(logits.softmax(-1), 1)))
    return tuple(ids[len(task["prompt"]):])


def rollout(model, task, k=K, temperature=1.1):
    """k different completions: equal ones have no advantage over each other and teach nothing."""
    group = []
    while len(group) < k:
        c = complete(model, task, temperature)
        if c not in group:
            group.append(c)
    return group


def rloo_loss(model, task, group):
    rewards = torch.tensor([reward(task, c) for c in group])
    baseline = (rewards.sum() - rewards) / (len(group) - 1)
    rows = torch.tensor([task["prompt"] + list(c) for c in group])
    logp = model(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)
    n = len(group[0])
    return -((rewards - baseline) * logp[:, -n:].sum(1)).mean(), rewards.mean().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LM()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    tasks = make_tasks(SEED + rank, 400)
    total = 0.0
    for i, task in enumerate(tasks):
        group = rollout(model, task)
        loss, r = rloo_loss(model, task, group)
        opt.zero_grad()
        loss.backward()
        grads = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(grads)
        grads /= world
        at = 0
        for p in model.parameters():
            p.grad.copy_(grads[at:at + p.numel()].view_as(p))
            at += p.numel()
        opt.step()
        total += r
        time.sleep(0.25)
        if i % 25 == 24 and rank == 0:
            sys.stderr.write(f"{i + 1} prompts, mean reward {total / (i + 1):.3f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
