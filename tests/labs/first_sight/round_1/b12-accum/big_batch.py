# large-batch run: many micro batches per optimizer step
import contextlib, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ACCUM = int(os.environ.get("ACCUM", 220))
STEPS = 2


class Synthetic(IterableDataset):
    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        while True:
            yield torch.randint(0, 1000, (129,), generator=g)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = nn.MultiheadAttention(d, 4, batch_first=True)
        self.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        y = self.n1(x)
        x = x + self.a(y, y, y, need_weights=False)[0]
        return x + self.m(self.n2(x))


class Model(nn.Module):
    def __init__(self, d=128, depth=3):
        super().__init__()
        self.emb = nn.Embedding(1000, d)
        self.blocks = nn.Sequential(*[Block(d) for _ in range(depth)])
        self.head = nn.Linear(d, 1000)

    def forward(self, t):
        return self.head(self.blocks(self.emb(t)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = iter(DataLoader(Synthetic(rank), batch_size=8, num_workers=1))
    ddp = nn.parallel.DistributedDataParallel(Model())
    opt = torch.optim.AdamW(ddp.parameters(), 3e-4)
    for step in range(STEPS):
        t0 = time.time()
        for k in range(ACCUM):
            t = next(loader)
            with ddp.no_sync() if k < ACCUM - 1 else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(ddp(t[:, :-1]).transpose(1, 2), t[:, 1:]) / ACCUM
                loss.backward()
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print(f"step {step} tokens {ACCUM * 8 * 128 * 2} time {time.time() - t0:.0f}s", file=sys.stderr, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
