"""Two-stage pipeline, one process each.  torchrun --nproc-per-node 2 train.py"""
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from stages import First, Last


@dataclass
class Config:
    features: int = 40
    hidden: int = 96
    classes: int = 6
    batch: int = 32
    micro: int = 8
    samples: int = 5240
    epochs: int = 6
    lr: float = 0.02


def dataset(cfg):
    g = torch.Generator().manual_seed(11)
    centres = torch.randn(cfg.classes, cfg.features, generator=g)
    y = torch.randint(0, cfg.classes, (cfg.samples,), generator=g)
    x = centres[y] + 1.5 * torch.randn(cfg.samples, cfg.features, generator=g)
    return TensorDataset(x, y)


def main():
    cfg = Config()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = First(cfg) if rank == 0 else Last(cfg)
    opt = torch.optim.SGD(stage.net.parameters(), cfg.lr, momentum=0.9)
    data = dataset(cfg)
    for epoch in range(cfg.epochs):
        loader = DataLoader(data, cfg.batch, shuffle=True, generator=torch.Generator().manual_seed(epoch))
        for n, (x, y) in enumerate(loader):
            opt.zero_grad()
            loss = stage.step(x, y)
            opt.step()
            if loss is not None and n % 10 == 0:
                print(f"Epoch [{epoch + 1}/{cfg.epochs}] Batch [{n}/{len(loader)}] Loss {loss:.4f}", flush=True)
        dist.barrier()
        if rank == 1:
            print(f"Epoch {epoch + 1} finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
