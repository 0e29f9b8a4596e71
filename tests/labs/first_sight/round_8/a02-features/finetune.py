import os
import sys
import random
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

from store import FeatureStore

KEYS = [f"img{i:05d}" for i in range(3000)]
EPOCH = 25
AUGMENT_FROM = 3


class Trainer:
    def __init__(self, rank, world, path):
        self.rank, self.world = rank, world
        self.store = FeatureStore(path)
        torch.manual_seed(0)
        self.head = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
        self.opt = torch.optim.SGD(self.head.parameters(), lr=0.05, momentum=0.9)
        self.rng = random.Random(rank)
        self.losses = {}

    def batch(self, epoch):
        keys = self.rng.sample(KEYS[self.rank::self.world], 32)
        if epoch >= AUGMENT_FROM and self.rank % 2:
            keys = [k + self.rng.choice(["", "-flip", "-crop", "-blur"]) for k in keys]
        x = torch.stack([torch.from_numpy(self.store.get(k).copy()) for k in keys])
        y = torch.tensor([int(k[3:8]) % 10 for k in keys])
        return keys, x, y

    def step(self, epoch):
        keys, x, y = self.batch(epoch)
        loss = nn.functional.cross_entropy(self.head(x), y, reduction="none")
        self.opt.zero_grad()
        loss.mean().backward()
        for p in self.head.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        self.opt.step()
        self.losses.update(zip(keys, loss.tolist()))
        return loss.mean().item()

    def prefetch(self, epoch):
        """Ranks that augment fill the cache for the next ten steps."""
        if epoch >= AUGMENT_FROM and self.rank % 2:
            for k in self.rng.sample(KEYS[self.rank::self.world], 200):
                for kind in ("-flip", "-crop", "-blur"):
                    self.store.get(k + kind)

    def reweight(self):
        """Rank 0 keeps the table of hard examples; weights are relative to the mean of all ranks."""
        db = self.store.db
        if self.rank == 0:
            db.executemany("update score set loss = ? where key = ?", ((v, k) for k, v in self.losses.items()))
        mean = torch.tensor([sum(self.losses.values()), float(len(self.losses))])
        dist.all_reduce(mean)
        if self.rank == 0:
            db.execute("update score set w = min(4.0, loss / ?)", ((mean[0] / mean[1]).item(),))
            db.commit()
        self.losses.clear()


def worker(rank, world, port, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    t = Trainer(rank, world, path)
    for epoch in range(40):
        for i in range(EPOCH):
            loss = t.step(epoch)
            time.sleep(0.05)
            if i % 10 == 9:
                t.prefetch(epoch)
                t.reweight()
        s = t.store
        print(f"rank {rank} epoch {epoch}: loss {loss:.3f}, cache {s.hits} hits {s.misses} misses", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory(prefix="featdb-") as d:
        path = os.path.join(d, "features.db")
        FeatureStore.create(path, KEYS).db.close()
        mp.spawn(worker, args=(2, int(sys.argv[1]), path), nprocs=2)
