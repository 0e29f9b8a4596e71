import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn

from client import score

URL, ROUNDS, GROUP, LENGTH = sys.argv[1], 24, 12, 48


class Policy(nn.Module):
    def __init__(self, vocab=64, d=256):
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(vocab, d), nn.GRUCell(d, d), nn.Linear(d, vocab)

    def forward(self, n, g):
        h, tok = torch.zeros(n, 256), torch.zeros(n, dtype=torch.long)
        toks, logps = [], []
        for _ in range(LENGTH):
            h = self.cell(self.emb(tok), h)
            lp = self.out(h).log_softmax(-1)
            tok = torch.multinomial(lp.detach().exp(), 1, generator=g)[:, 0]
            toks.append(tok)
            logps.append(lp.gather(1, tok[:, None])[:, 0])
        return torch.stack(toks, 1), torch.stack(logps, 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    g = torch.Generator().manual_seed(rank)
    for r in range(ROUNDS):
        toks, logps = policy(GROUP, g)
        texts = ["".join(chr(33 + t) for t in row) for row in toks.tolist()]
        rewards = torch.tensor(score(URL, texts))
        loss = -((rewards - rewards.mean())[:, None] * logps).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        dist.all_reduce(rewards)
        if rank == 0:
            print(f"round {r + 1}/{ROUNDS}: reward {rewards.mean() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
