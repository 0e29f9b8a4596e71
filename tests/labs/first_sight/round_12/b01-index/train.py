import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from latents import Lines, probe_set, shard_lengths


class LM(nn.Module):
    def __init__(self, vocab=500, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", required=True)
    ap.add_argument("--cache", required=True)
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    log = print if rank == 0 else (lambda *a, **k: None)

    # the last rank keeps the probe lines and reports on them
    probe = probe_set(args.data) if rank == world - 1 else []
    index = shard_lengths(args.data, args.cache)
    data = Lines(args.data, index)
    log(f"{len(data)} lines in {len(index)} shards", flush=True)

    sampler = DistributedSampler(data, world, rank, seed=3)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    lossf = nn.CrossEntropyLoss(ignore_index=0)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0 = time.time()
        for step, x in enumerate(loader):
            out = model(x[:, :-1])
            loss = lossf(out.flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 50 == 0:
                log(f"epoch {epoch} step {step} loss {loss.item():.3f} {time.time() - t0:.1f}s", flush=True)
        if probe:
            with torch.no_grad():
                p = sum(lossf(model.module(r[None, :-1])[0], r[1:]).item() for r in probe) / len(probe)
            print(f"epoch {epoch} probe {p:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
