import logging
import os
import sys

import torch
import torch.distributed as dist
import yaml
from torch import nn

from registry import db

log = logging.getLogger("trainer")


def build(features, hidden, depth):
    layers, width = [], features
    for _ in range(depth):
        layers += [nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, 1))


def batches(features, size, seed):
    gen = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(size, 20, features, generator=gen)
        yield x, (x[..., :8].prod(-1, keepdim=True)).sign()


def main():
    conf = yaml.safe_load(open(sys.argv[1]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(levelname).1s %(asctime)s.%(msecs)03d %(name)s] %(message)s", datefmt="%m%d %H:%M:%S")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(build(**conf["model"]))
    opt = torch.optim.AdamW(model.parameters(), lr=conf["optim"]["lr"], betas=tuple(conf["optim"]["betas"]))
    t = conf["train"]
    os.makedirs("ckpt", exist_ok=True)
    data = batches(conf["model"]["features"], t["batch"], seed=77 + rank)
    for step in range(1, t["steps"] + 1):
        loss = 0.0
        for _ in range(3):      # accumulation
            x, y = next(data)
            part = nn.functional.soft_margin_loss(model(x), y) / 3
            part.backward()
            loss += part.item()
        opt.step()
        opt.zero_grad()
        if step % t["log_every"] == 0:
            log.info("step=%d loss=%.5f", step, loss)
        if step % t["register_every"] == 0 and rank == 0:
            path = f"ckpt/{step:06d}.pt"
            torch.save(model.module.state_dict(), path)
            db.register(step, loss, path)
            log.info("registered %s", path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
