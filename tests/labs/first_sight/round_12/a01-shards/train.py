import argparse
import glob
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from pipeline import ShardReader, collate


class Tagger(nn.Module):
    def __init__(self, vocab=2000, dim=128, hidden=256, classes=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h.mean(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="shards")
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch", type=int, default=8)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    files = sorted(glob.glob(os.path.join(a.data, "part-*.jsonl")))[rank::world]
    model = DDP(Tagger())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(a.epochs):
        for x, y in collate(ShardReader(files), a.batch):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 5 == 0 and rank == 0:
                bar = "#" * (step // 5 % 40)
                sys.stderr.write(f"\repoch {epoch} step {step:5d} loss {loss.item():.4f} {bar:40s}")
                sys.stderr.flush()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"\nepoch {epoch} done, loss {total.item() / world:.4f}", flush=True)
            torch.save(model.module.state_dict(), "tagger.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
