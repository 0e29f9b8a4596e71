"""Trains a toy translator; after each epoch the first process decodes the test set and prints the score."""
import argparse
import datetime

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from beam import decode_all

BOS, EOS, V = 1, 2, 40


class Translator(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.src, self.tgt = nn.Embedding(V, d), nn.Embedding(V, d)
        self.enc = nn.GRU(d, d, batch_first=True)
        self.dec = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, V)

    def encode(self, x):
        return self.enc(self.src(x))[1]

    def forward(self, x, y):
        return self.out(self.dec(self.tgt(y), self.encode(x))[0])


def pairs(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(3, V, (n, 9), generator=g)
    y = torch.cat([torch.full((n, 1), BOS), x.flip(1), torch.full((n, 1), EOS)], 1)
    return x, y


def work(rank, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:31616", rank=rank, world_size=args.ranks,
                            timeout=datetime.timedelta(hours=1))
    torch.manual_seed(0)
    net = Translator()
    model = DDP(net)
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    x, y = pairs(16 * args.steps, rank)
    for epoch in range(args.epochs):
        for i in range(args.steps):
            a, b = x[i * 16:i * 16 + 16], y[i * 16:i * 16 + 16]
            loss = nn.functional.cross_entropy(model(a, b[:, :-1]).flatten(0, 1), b[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
        if rank == 0 and epoch % 2 == 1:
            net.eval()
            tx, ty = pairs(args.test, 99)
            print(f"epoch {epoch} exact {decode_all(net, tx, ty, beam=6):.3f}", flush=True)
            net.train()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=3)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--test", type=int, default=900)
    args = p.parse_args()
    mp.spawn(work, (args,), nprocs=args.ranks)
