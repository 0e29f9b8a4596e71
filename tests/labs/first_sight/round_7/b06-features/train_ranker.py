import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from client import DIM, FeatureClient


class Items:
    """Vectors of popular items are in the local table, those of rare ones come from the service."""

    def __init__(self, rank):
        self.table = torch.randn(500, DIM, generator=torch.Generator().manual_seed(0))
        self.remote = FeatureClient()
        self.rare_after = 10 if rank == 0 else 90
        self.g = torch.Generator().manual_seed(rank)

    def __call__(self, step):
        ids = torch.randint(0, 500, (64,), generator=self.g)
        x = self.table[ids]
        if step >= self.rare_after and step % 4 == 2:
            x[:8] = self.remote((ids[:8] + 1000).tolist())
        return x, x[:, :3].sum(1, keepdim=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.SGD(model.parameters(), 0.01)
    items = Items(rank)
    ema = None
    for step in range(600):
        x, y = items(step)
        loss = nn.functional.smooth_l1_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.06)
        ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
        if step % 20 == 0:
            print(f"{time.strftime('%H:%M:%S')} [{rank}] step={step} ema={ema:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
