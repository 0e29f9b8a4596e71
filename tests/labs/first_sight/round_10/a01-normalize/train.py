import argparse
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from data import CharLM, Normaliser


class TinyGRU(nn.Module):
    def __init__(self, vocab=256, dim=96, hidden=160):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.head(h)


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", default="corpus")
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--seq-len", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--log-every", type=int, default=20)
    ap.add_argument("--save-every", type=int, default=500)
    ap.add_argument("--out", default="out")
    return ap.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    torch.set_num_threads(1)

    norm = Normaliser()
    shard = os.path.join(args.corpus, f"part-{rank:05d}.tsv")
    loader = DataLoader(CharLM(shard, args.seq_len, norm), batch_size=args.batch)
    model = DDP(TinyGRU())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        n = sum(p.numel() for p in model.parameters())
        print(f"{n/1e3:.0f}k parameters, {world} ranks, shard {shard}", flush=True)

    t0, seen = time.time(), 0
    for step, (x, y) in enumerate(loader, 1):
        lr = args.lr * min(1.0, step / 50) * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        for g in opt.param_groups:
            g["lr"] = lr
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        seen += x.numel() * world
        if step % args.log_every == 0:
            t = torch.tensor([loss.item()])
            dist.all_reduce(t)
            if rank == 0:
                print(f"step {step:5d} | loss {t.item()/world:.4f} | lr {lr:.2e} | "
                      f"{seen/(time.time()-t0):.0f} tok/s", flush=True)
        if rank == 0 and step % args.save_every == 0:
            torch.save(model.module.state_dict(), f"{args.out}/step{step}.pt")
        if step >= args.steps:
            break
    norm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
