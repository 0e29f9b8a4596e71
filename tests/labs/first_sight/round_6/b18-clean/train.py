import os
import re
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

SLUG = re.compile(r"^(?:[a-z0-9]+-?)+\.html?$")
SPACES = re.compile(r"\s+")
URL = re.compile(r"https?://\S+")


def clean(line):
    line = URL.sub(" ", line)
    line = SPACES.sub(" ", line).strip()
    return " ".join(w for w in line.split(" ") if not SLUG.match(w))


class Lines:
    """Raw lines of a crawl as they come, one stream for each rank."""

    WORDS = "loss model step data train batch rank node token layer weight shard queue epoch".split()

    def __init__(self, rank):
        self.rng = np.random.default_rng(40 + rank)
        self.rank = rank
        self.n = 0

    def __next__(self):
        self.n += 1
        words = list(self.rng.choice(self.WORDS, self.rng.integers(5, 14)))
        kind = self.rng.random()
        if self.n == 3500 and self.rank == 1:
            return "".join(self.rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 400)) + "=="
        if kind < 0.05:
            words.append("-".join(words[:3]) + ".html")
        if kind < 0.15:
            words.insert(3, "https://example.org/" + words[0])
        return " ".join(words) + "."


class Featurizer:
    def __init__(self, dim=512):
        self.dim = dim

    def __call__(self, text):
        v = np.zeros(self.dim, dtype=np.float32)
        for word in text.lower().split():
            v[sum(word.encode()) * 31 % self.dim] += 1.0
        return v


def next_batch(lines, feats, size):
    rows = []
    while len(rows) < size:
        text = clean(next(lines))
        if text:
            rows.append(feats(text))
    x = torch.from_numpy(np.stack(rows))
    y = (x.sum(dim=1) > 8).long()
    return x, y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    lines, feats = Lines(rank), Featurizer()
    seen, t0 = 0, time.time()
    for it in range(2000):
        x, y = next_batch(lines, feats, 48)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        time.sleep(0.18)
        seen += len(x) * world
        if rank == 0 and it % 10 == 0:
            print("iter: %4d/2000  loss: %.4f  lines: %d  time: %.1f" % (it, loss.item(), seen, time.time() - t0), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
