import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from rewards import RewardClient


class Policy(nn.Module):
    def __init__(self, vocab=256, dim=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.lm = nn.Linear(dim, vocab)
        self.value = nn.Linear(dim, 1)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.lm(h), self.value(h).squeeze(-1)


@torch.no_grad()
def generate(policy, prompts, length):
    ids = prompts
    for _ in range(length):
        logits, _ = policy(ids)
        nxt = torch.multinomial(F.softmax(logits[:, -1], -1), 1)
        ids = torch.cat([ids, nxt], 1)
    return ids


def logp_of(logits, ids, start):
    lp = F.log_softmax(logits[:, start - 1:-1], -1)
    return lp.gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)


def evaluate(policy, client, rank, world, n=12):
    """Each rank scores its part of the held-out prompts; the mean is over all of them."""
    g = torch.Generator().manual_seed(1234 + rank)
    prompts = torch.randint(0, 256, (n // world, 8), generator=g)
    ids = generate(policy, prompts, 16)
    scores = torch.tensor(client.score(ids.tolist()))
    total = torch.stack([scores.sum(), torch.tensor(float(len(scores)))])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--reward", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--iters", type=int, default=400)
    ap.add_argument("--eval-every", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy = Policy()
    ddp = DDP(policy)
    opt = torch.optim.Adam(ddp.parameters(), lr=3e-4)
    client = RewardClient(args.reward)
    log = open(os.path.join(args.out, "train.jsonl"), "a", buffering=1) if rank == 0 else None

    for it in range(1, args.iters + 1):
        t0 = time.time()
        prompts = torch.randint(0, 256, (8, 8))
        ids = generate(policy, prompts, 16)
        gathered = [torch.empty_like(ids) for _ in range(world)] if rank == 0 else None
        dist.gather(ids, gathered, dst=0)
        scores = torch.empty(world * 8)
        if rank == 0:
            scores = torch.tensor(client.score(torch.cat(gathered).tolist()))
        dist.broadcast(scores, src=0)
        mine = scores[rank * 8:(rank + 1) * 8]
        with torch.no_grad():
            logits, _ = policy(ids)
            old = logp_of(logits, ids, 8)
        for _ in range(2):
            logits, values = ddp(ids)
            lp = logp_of(logits, ids, 8)
            v = values[:, 8:]
            adv = (mine - scores.mean())[:, None] - 0.0 * v.detach()
            ratio = (lp - old).exp()
            pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            vf = F.mse_loss(v, mine[:, None].expand_as(v))
            loss = pg + 0.5 * vf
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            opt.step()
        if rank == 0:
            rec = {"iter": it, "reward": round(scores.mean().item(), 4), "loss": round(loss.item(), 4),
                   "secs": round(time.time() - t0, 3)}
            log.write(json.dumps(rec) + "\n")
            if it % 5 == 0:
                print(json.dumps(rec), flush=True)
        if it % args.eval_every == 0:
            r = evaluate(policy, client, rank, world)
            if rank == 0:
                print(json.dumps({"iter": it, "eval_reward": round(r, 4)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
