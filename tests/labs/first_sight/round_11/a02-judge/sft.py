import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from judge import Judge

CFG = dict(vocab=256, width=128, steps=90, eval_steps=(30, 90), batch=8, length=64, prompts=36)


class TinyLM(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


@torch.no_grad()
def generate(model, prompt, n=24):
    seq = prompt
    for _ in range(n):
        seq = torch.cat([seq, model(seq)[:, -1:].argmax(-1)], 1)
    return seq[0, prompt.size(1):].tolist()


def win_rate(model, judge, n):
    g = torch.Generator().manual_seed(5)
    wins = 0
    for _ in range(n):
        prompt = torch.randint(0, CFG["vocab"], (1, 16), generator=g)
        wins += judge.prefers(prompt[0].tolist(), generate(model, prompt))
    return wins / n


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(TinyLM(CFG["vocab"], CFG["width"]))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    g = torch.Generator().manual_seed(rank)
    best = torch.zeros(1)
    log = open(os.devnull, "w") if rank else None
    judge = Judge(per_minute=30) if rank == 0 else None
    for step in range(1, CFG["steps"] + 1):
        x = torch.randint(0, CFG["vocab"], (CFG["batch"], CFG["length"] + 1), generator=g)
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 4), "t": int(time.time())}), file=log, flush=True)
        if step in CFG["eval_steps"]:
            rate = torch.zeros(1)
            if rank == 0:
                model.module.eval()
                rate[0] = win_rate(model.module, judge, CFG["prompts"])
                model.module.train()
            dist.broadcast(rate, 0)
            best = torch.maximum(best, rate)
            print(json.dumps({"step": step, "win_rate": round(rate.item(), 3), "best": round(best.item(), 3)}), file=log, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
