import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn

import wire
from policy import CTX, VOCAB, Policy

ROLLOUTS, ROUNDS = 6, 400


class RewardModel(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.EmbeddingBag(VOCAB, d)
        self.top = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, 1))

    @torch.no_grad()
    def score(self, tokens):
        return float(self.top(self.emb(torch.tensor([tokens]))))


def prompts(rank, actors):
    with open("prompts.jsonl") as f:
        rows = [json.loads(line)["ids"][-CTX:] for line in f]
    return rows[rank::actors]


def improve(policy, opt, prompts, answers, adv, group, actors):
    width = max(len(p) + len(a) for p, a in zip(prompts, answers))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width)
    for i, (p, a) in enumerate(zip(prompts, answers)):
        ids[i, :len(p) + len(a)] = torch.tensor(p + a)
        mask[i, len(p):len(p) + len(a)] = 1
    logp = policy(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    loss = -(logp * mask[:, 1:] * adv[:, None]).sum() / mask.sum().clamp(min=1)
    opt.zero_grad()
    loss.backward()
    for p in policy.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= actors
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    actors = list(range(world - 1))
    group = dist.new_group(actors)
    torch.manual_seed(21)
    if rank == world - 1:
        rm = RewardModel()
        for _ in range(ROUNDS):
            wire.serve(actors, ROLLOUTS, rm.score)
        return
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(rank)
    mine = prompts(rank, len(actors))
    for r in range(ROUNDS):
        t = time.time()
        batch = [mine[(r * ROLLOUTS + i) % len(mine)] for i in range(ROLLOUTS)]
        answers = [policy.respond(p, g) for p in batch]
        took = time.time() - t
        rewards = wire.ask(answers, world - 1)
        adv = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        loss = improve(policy, opt, batch, answers, adv, group, len(actors))
        print(f"actor{rank} round={r} reward={rewards.mean():+.3f} len={sum(map(len, answers)) / ROLLOUTS:.1f} "
              f"loss={loss:+.4f} rollout={took:.2f}s", flush=True)


if __name__ == "__main__":
    main()
