import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class Captioner(nn.Module):
    """Text decoder with an optional picture prefix."""

    def __init__(self, vocab=512, dim=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.vision = nn.Sequential(nn.Linear(3 * 16 * 16, dim), nn.GELU(), nn.Linear(dim, dim))
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens, pictures=None):
        x = self.embed(tokens)
        if pictures is not None:
            prefix = self.vision(pictures.flatten(1)).unsqueeze(1)
            x = x + prefix
        out, _ = self.decoder(x)
        return self.head(out)


class MixedCorpus:
    """Pairs of caption and picture first, then what is left of the plain text.

    The mixture is fixed once for the whole corpus; each rank reads its own contiguous part.
    """

    def __init__(self, rank, world, batch, pairs, seed=11):
        self.gen = torch.Generator().manual_seed(seed + rank)
        self.batch = batch
        total_batches = 400
        share = total_batches // world
        self.first = rank * share
        self.n = share
        self.pairs = pairs

    def __len__(self):
        return self.n

    def __iter__(self):
        for i in range(self.n):
            tokens = torch.randint(0, 512, (self.batch, 24), generator=self.gen)
            time.sleep(0.08)
            if self.first + i < self.pairs:
                pictures = torch.randn(self.batch, 3, 16, 16, generator=self.gen)
            else:
                pictures = None
            yield tokens, pictures


def mean_over_ranks(value, group):
    t = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(t, group=group)
    return (t / dist.get_world_size()).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--pairs", type=int, default=280)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    metrics = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = DDP(Captioner())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_fn = nn.CrossEntropyLoss()
    data = MixedCorpus(rank, world, args.batch, args.pairs)
    if rank == 0:
        n = sum(x.numel() for x in model.parameters())
        print(json.dumps({"event": "start", "world": world, "parameters": n, "batches": len(data)}), flush=True)

    tick = time.time()
    for step, (tokens, pictures) in enumerate(data, 1):
        logits = model(tokens[:, :-1], pictures)
        loss = loss_fn(logits.flatten(0, 1), tokens[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        avg = mean_over_ranks(loss.item(), metrics)
        if rank == 0 and step % 5 == 0:
            now = time.time()
            print(json.dumps({"step": step, "loss": round(avg, 4), "sec_per_step": round((now - tick) / 5, 3)}), flush=True)
            tick = now
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "captioner.pt")
        print(json.dumps({"event": "done"}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
