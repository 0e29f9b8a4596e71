import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ckpt.saver import Saver
from ckpt.uploader import Bucket, Uploader


def build():
    return nn.Sequential(nn.Conv1d(8, 96, 5, padding=2), nn.ReLU(), nn.Conv1d(96, 192, 5, padding=2), nn.ReLU(),
                         nn.Conv1d(192, 384, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                         nn.Linear(384, 12))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    base = f"/tmp/uploader-{os.getppid()}"
    os.makedirs(base, exist_ok=True)
    logging.basicConfig(filename=f"{base}/rank{rank}.log", level=logging.INFO,
                        format="%(asctime)s %(name)s %(message)s")
    torch.manual_seed(0)
    model = DDP(build())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    saver = Saver(f"{base}/local", Uploader(Bucket(f"{base}/bucket")), every=20) if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 3001):
        x = torch.randn(16, 8, 128, generator=g)
        y = (x.mean((1, 2)) * 40).long().clamp(-5, 6) + 5
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if saver:
            saver.maybe(step, model.module, opt)
            if step % 10 == 0:
                print(f"iter {step} | loss {loss.item():.4f}", flush=True)
    if saver:
        saver.uploader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
