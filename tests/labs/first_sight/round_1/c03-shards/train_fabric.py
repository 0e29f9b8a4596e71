import json
import os
import time
import urllib.request

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

URL = os.environ["CORPUS_URL"]


def read_shard(n):
    with urllib.request.urlopen(f"{URL}/shard/{n}") as r:
        return r.read()


class ShardStream(IterableDataset):
    """Shards dealt out round robin to the ranks; one worker a rank."""

    def __init__(self, rank, world, shards):
        self.mine = list(range(rank, shards, world))

    def __iter__(self):
        for n in self.mine:
            for line in read_shard(n).splitlines():
                row = json.loads(line)
                yield torch.tensor(row["x"]), torch.tensor(row["y"])


def main():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    loader = DataLoader(ShardStream(fabric.global_rank, fabric.world_size, 400), batch_size=8,
                        num_workers=1, prefetch_factor=2)
    t = time.time()
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.3)
        if step % 20 == 19:
            fabric.print(f"step={step + 1} loss={loss.item():.4f} it/s={20 / (time.time() - t):.1f}", flush=True)
            t = time.time()


if __name__ == "__main__":
    main()
