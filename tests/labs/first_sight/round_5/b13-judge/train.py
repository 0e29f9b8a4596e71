import asyncio
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from client import JudgeClient

STEPS, BATCH, LEN, VOCAB = 400, 6, 8, 300


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 48)
        self.mix = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, VOCAB))

    def forward(self, ids):
        return self.mix(self.emb(ids)).log_softmax(-1)


def generate(model, batch):
    ids = torch.randint(0, VOCAB, (batch, 1))
    with torch.no_grad():
        for _ in range(LEN):
            p = model(ids[:, -1:])[:, 0].exp()
            ids = torch.cat([ids, torch.multinomial(p, 1)], dim=1)
    return ids


def main(url):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Generator())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(100 + rank)
    loop = asyncio.new_event_loop()
    judge = JudgeClient(url, f"train-{rank}")
    baseline = 0.5
    for step in range(STEPS):
        t0 = time.time()
        ids = generate(model.module, BATCH)
        t1 = time.time()
        scores = torch.tensor(loop.run_until_complete(judge.score(ids[:, 1:].tolist())))
        t2 = time.time()
        logp = model(ids[:, :-1]).gather(2, ids[:, 1:, None]).squeeze(2).sum(1)
        loss = -((scores - baseline) * logp).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        baseline = 0.95 * baseline + 0.05 * scores.mean().item()
        time.sleep(0.3)
        if step % 3 == 0:
            line = {"rank": rank, "step": step, "score": round(scores.mean().item(), 3), "gen": round(t1 - t0, 3),
                    "judge": round(t2 - t1, 3), "retried": judge.retried}
            print(json.dumps(line), flush=True)
    loop.run_until_complete(judge.close())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(open(os.environ["JUDGE_FILE"]).read())
