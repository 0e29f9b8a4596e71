import os
import random
import sys

import torch
import torch.distributed as dist
import torch.nn as nn

from bucketed import Bucketed
from curriculum import Curriculum

VOCAB = 300
PLAN = [(0, 128), (20, 160), (45, 192), (75, 64)]


def documents(n, seed=4):
    r = random.Random(seed)
    docs = []
    for _ in range(n):
        k, start, jump = r.randint(4, 192), r.randrange(1, VOCAB), r.choice([1, 2, 3, 5])
        docs.append([(start + i * jump) % (VOCAB - 1) + 1 for i in range(k)])
    return docs


class LM(nn.Module):
    def __init__(self, d=192):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=0)
        self.rnn = nn.GRU(d, d, 2, batch_first=True)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids[:, :-1]))[0])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(LM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan, data = Curriculum(PLAN), Bucketed(documents(4000), rank, world)
    seen = torch.zeros(1)
    for step in range(3000):
        ids = data.batch(1024, plan.limit(step))
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += (ids > 0).sum()
        if step % 25 == 24:
            every = seen.clone()
            dist.all_reduce(every)
            if rank == 0:
                sys.stdout.write(f"step={step + 1} loss={loss.item():.3f} tokens={int(every)} len={ids.shape[1]}\n")
                sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
