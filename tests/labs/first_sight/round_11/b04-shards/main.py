import glob
import logging
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from pipeline import Shards

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
os.makedirs("logs", exist_ok=True)
logging.basicConfig(filename=f"logs/rank{rank}.log", level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
log = logging.getLogger("train")


class Net(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.emb = nn.Embedding(256, d)
        self.conv = nn.Sequential(*[nn.Conv1d(d, d, 5, padding=2) if i % 2 == 0 else nn.ReLU() for i in range(6)])
        self.out = nn.Linear(d, 4)

    def forward(self, x):
        return self.out(self.conv(self.emb(x).transpose(1, 2)).mean(-1))


def bar(i, text):
    if rank == 0:
        sys.stderr.write(f"\r{'#' * (i // 4):<20}| {i:3d} {text}")
        sys.stderr.flush()


torch.manual_seed(0)
model = DDP(Net())
opt = torch.optim.Adam(model.parameters(), 1e-3)
data = Shards(sorted(glob.glob("data/train-*.tar.gz")), rank, world)
for epoch in range(5):
    loader = DataLoader(data, batch_size=2, num_workers=1, drop_last=True)
    losses, right, n = [], 0, 0
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        right += int((out.argmax(1) == y).sum())
        n += len(y)
        bar(i + 1, f"loss {loss.item():.3f}")
        if i % 10 == 0:
            log.info("epoch %d step %d loss %.4f", epoch, i, loss.item())
    stats = [None] * world
    dist.all_gather_object(stats, {"loss": sum(losses) / len(losses), "right": right, "n": n})
    if rank == 0:
        print(f"\nepoch {epoch}: acc {sum(s['right'] for s in stats) / sum(s['n'] for s in stats):.3f}")
dist.destroy_process_group()
