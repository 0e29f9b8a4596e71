import json
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from writer import Writer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 36, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, x):
        return self.head(self.conv(x))


def images(rank):
    g = torch.Generator().manual_seed(rank)
    x = torch.rand(1024, 1, 28, 28, generator=g)
    y = torch.randint(0, 10, (1024,), generator=g)
    for i in range(10):
        x[y == i, :, 2 * i:2 * i + 3] += 1
    return x, y


def main(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = Net()
    model = DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    writer = Writer(folder) if rank == 0 else None
    x, y = images(rank)
    n = 0
    for epoch in range(5):
        hits = 0
        for k in range(0, 1024, 64):
            out = model(x[k:k + 64])
            loss = nn.functional.cross_entropy(out, y[k:k + 64])
            opt.zero_grad()
            loss.backward()
            opt.step()
            hits += (out.argmax(1) == y[k:k + 64]).sum().item()
            n += 1
            time.sleep(0.05)
            if writer and n % 16 == 0:
                writer.save(n, net)
        if rank == 0:
            print(f"epoch {epoch + 1}/5  loss {loss.item():.3f}  train acc {hits / 1024:.3f}", flush=True)
    if writer:
        manifest = writer.close()
        with open(os.path.join(folder, "manifest.json"), "w") as f:
            json.dump(manifest, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="digits-")
    try:
        mp.spawn(main, args=(2, folder), nprocs=2)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
