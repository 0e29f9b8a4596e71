import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from decode import Judge, beam

VOCAB, LEN = 60, 12


class Seq2Seq(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.enc = nn.GRU(d, d, batch_first=True)
        self.dec = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, src, tgt):
        _, h = self.enc(self.emb(src))
        y, _ = self.dec(self.emb(tgt), h)
        return self.out(y)


def pairs(n, gen):
    src = torch.randint(2, VOCAB, (n, LEN), generator=gen)
    return src, src.flip(1)


def evaluate(model, n, judge):
    model.eval()
    src, ref = pairs(n, torch.Generator().manual_seed(99))
    total = sum(judge.score(beam(model, src[i:i + 1], LEN), ref[i].tolist()) for i in range(n))
    model.train()
    return total / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--eval-every", type=int, default=150)
    ap.add_argument("--eval-size", type=int, default=40)
    ap.add_argument("--judge-seconds", type=float, default=1.2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Seq2Seq())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    judge = Judge(args.judge_seconds)
    t = time.time()
    for step in range(1, args.steps + 1):
        src, ref = pairs(32, gen)
        tgt = torch.cat([torch.ones(32, 1, dtype=torch.long), ref[:, :-1]], 1)
        loss = nn.functional.cross_entropy(model(src, tgt).flatten(0, 1), ref.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 25 == 0:
            sys.stderr.write(f"{step}/{args.steps} loss {loss.item():.3f} ({time.time() - t:.0f} s)\n")
        if step % args.eval_every == 0:
            if rank == 0:
                quality = evaluate(model.module, args.eval_size, judge)
                sys.stderr.write(f"{step}/{args.steps} judged {quality:.3f} ({time.time() - t:.0f} s)\n")
            dist.barrier()
    dist.destroy_process_group()


main()
