import argparse
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from loader import PageLoader


def net(classes):
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, 2), nn.ReLU(), nn.Conv2d(12, 24, 5, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(24 * 49, 96), nn.ReLU(), nn.Linear(96, classes))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pages", default="pages")
    ap.add_argument("--epochs", type=int, default=40)
    ap.add_argument("--batch", type=int, default=8)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(net(8))
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for epoch in range(a.epochs):
        t0, hits, seen = time.time(), 0, 0
        for n, (x, y) in enumerate(PageLoader(a.pages, rank, a.batch), 1):
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            hits += int((out.argmax(1) == y).sum())
            seen += len(y)
            if n % 20 == 0:
                print(json.dumps({"rank": rank, "epoch": epoch, "batch": n, "loss": round(loss.item(), 4),
                                  "acc": round(hits / seen, 3), "s": round(time.time() - t0, 1)}), flush=True)
            time.sleep(0.05)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
