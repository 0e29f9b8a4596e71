"""usage: torchrun ... run_training.py --scratch DIR   (continues from DIR/nodeN/last.pt when there is one)"""
import argparse
import datetime as dt
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--scratch", default="scratch")
    p.add_argument("--total-steps", type=int, default=160)
    p.add_argument("--save-every", type=int, default=80)
    return p.parse_args()


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        # node-local disk, the shared one is too slow for checkpoints
        self.dir = pathlib.Path(args.scratch) / f"node{os.environ.get('NODE_ID', self.rank)}"
        torch.manual_seed(21)
        self.net = nn.Sequential(nn.Embedding(1000, 64), nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.step = 0
        self.resume()
        self.model = DistributedDataParallel(self.net)  # also brings rank 0's weights to everyone

    def resume(self):
        path = self.dir / "last.pt"
        if not path.exists():
            return
        ck = torch.load(path, map_location="cpu", weights_only=True)
        self.net.load_state_dict(ck["net"])
        self.opt.load_state_dict(ck["opt"])
        self.step = ck["step"]

    def save(self):
        if self.rank == 0:
            self.dir.mkdir(parents=True, exist_ok=True)
            torch.save({"net": self.net.state_dict(), "opt": self.opt.state_dict(), "step": self.step}, self.dir / "last.pt")

    def batch(self):
        g = torch.Generator().manual_seed(self.step * self.world + self.rank)
        x = torch.randint(0, 1000, (16, 16), generator=g)
        time.sleep(0.15)
        return x, x[:, 0] % 10

    def fit(self):
        while self.step < self.args.total_steps:
            x, y = self.batch()
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.rank == self.world - 1 and self.step % 25 == 0:
                print(f"{dt.datetime.now():%H:%M:%S} train loss={loss.item():.3f}", flush=True)
            if self.step % self.args.save_every == 0 and self.step < self.args.total_steps:
                self.save()

    def finish(self):
        store = dist.distributed_c10d._get_default_store()
        store.set(f"finished/{self.rank}", "1")
        if self.rank == 0:
            # keep the store alive until the last rank is out
            store.wait([f"finished/{r}" for r in range(self.world)], dt.timedelta(hours=2))
            torch.save(self.net.state_dict(), self.dir / "final.pt")
            print("done", flush=True)


if __name__ == "__main__":
    args = parse()
    dist.init_process_group("gloo", timeout=dt.timedelta(hours=2))
    t = Trainer(args)
    t.fit()
    t.finish()
    dist.destroy_process_group()
