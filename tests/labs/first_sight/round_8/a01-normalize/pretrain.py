import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from corpus import SHARDS, batches


class ByteLM(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.emb = nn.Embedding(256, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 256)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--batch", type=int, default=12)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DDP(ByteLM())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    stream = batches(rank, args.batch)
    print(f"[rank {rank}] shard {SHARDS[rank]}", flush=True)
    t0 = time.time()
    for step in range(1, args.steps + 1):
        x = next(stream)
        logits = model(x[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 256), x[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.03)
        if step % 10 == 0 and rank == 0:
            print(f"step {step}/{args.steps} | loss {loss.item():.4f} | {(time.time() - t0) / step * 1e3:.0f} ms/step",
                  flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
