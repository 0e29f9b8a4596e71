"""SFT with a judged comparison against the base model in the middle and at the end (main rank only)."""
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from judge import Judge

STEPS, EVAL_AT, PAIRS = 700, (350, 700), 22


class LM(nn.Module):
    def __init__(self, vocab=300, dim=128):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(vocab, dim), nn.LSTM(dim, dim, 2, batch_first=True), nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


@torch.no_grad()
def answer(model, prompt, n=20):
    ids = prompt.clone()
    for _ in range(n):
        ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[0].tolist()


def evaluate(model, base, url):
    g = torch.Generator().manual_seed(5)
    pairs = []
    for _ in range(PAIRS):
        p = torch.randint(0, 300, (1, 10), generator=g)
        pairs.append((answer(model, p), answer(base, p)))
    judge = Judge(url)
    return judge.win_rate(pairs), judge.waited


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    api, url = None, None
    if rank == 0:
        api = subprocess.Popen([sys.executable, "judge_api.py"], stdout=subprocess.PIPE, text=True)
        url = f"http://127.0.0.1:{int(api.stdout.readline())}/v1/compare"
    net, base = LM(), LM()
    base.load_state_dict(net.state_dict())
    model = DDP(net)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        x = (torch.randint(0, 300, (8, 1), generator=g) + torch.arange(33) * 3) % 300
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 and rank == 0:
            print(f"{step}/{STEPS} loss {loss.item():.4f}", flush=True)
        if step in EVAL_AT:
            if rank == 0:
                t0 = time.time()
                rate, waited = evaluate(net, base, url)
                print(f"win rate against base {rate:.2f} ({time.time() - t0:.0f} s)", flush=True)
            dist.barrier()
    if api:
        api.terminate()
        api.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
