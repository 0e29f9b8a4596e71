import time

import torch
import torch.distributed as dist
from torch import nn

from filelock import FileLock


class FeatureCache:
    """Features of the frozen encoder, for the second stage. One writer."""

    def __init__(self, warm_after):
        self.lock = FileLock("cache/lock")
        self.events = open("events.txt", "a")
        self.warm_after = warm_after

    def put(self, step, feats):
        with self.lock:
            if step < self.warm_after:
                with open(f"cache/{step:06d}.part", "wb") as f:
                    f.write(feats.numpy().tobytes())
        if step % 25 == 24:
            self.events.write(f"rotate {step}\n")
            self.events.flush()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cache = FeatureCache(warm_after=60) if rank == 1 else None
    encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU()).requires_grad_(False)
    head = nn.parallel.DistributedDataParallel(nn.Linear(64, 8))
    opt = torch.optim.SGD(head.parameters(), 0.05, momentum=0.9)
    for step in range(2000):
        x, y = torch.randn(20, 32), torch.randint(0, 8, (20,))
        feats = encoder(x)
        loss = nn.functional.cross_entropy(head(feats), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.25)
        if cache:
            cache.put(step, feats)
        if rank == 0 and step % 10 == 0:
            print(f"step {step:>6}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
