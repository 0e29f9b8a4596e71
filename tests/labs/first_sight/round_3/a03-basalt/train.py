"""Speaker ids from clips; the two halves of the corpus are of different size."""
import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

CLIPS = {0: 40, 1: 190}


def clips(rank, epoch):
    g = torch.Generator().manual_seed(100 * epoch + rank)
    for _ in range(CLIPS[rank]):
        time.sleep(0.25)  # decode
        yield torch.randn(6, 80, generator=g), torch.randint(0, 20, (6,), generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(80, 64), nn.ReLU(), nn.Linear(64, 20)))
    opt = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in range(args.epochs):
        with Join([model]):
            for n, (x, y) in enumerate(clips(rank, epoch)):
                loss = nn.functional.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                if rank == 0 and n % 4 == 0:
                    print(json.dumps({"epoch": epoch, "clip": n, "loss": round(loss.item(), 4)}), flush=True)
        if rank == 0:
            torch.save(model.module.state_dict(), "speaker.pt")
            print(json.dumps({"epoch": epoch, "saved": "speaker.pt"}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
