import logging
import os
import shutil

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from background import Control, Mirror, environment


def unet(c=20):
    return nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU(),
                         nn.Conv2d(2 * c, 2 * c, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2),
                         nn.Conv2d(2 * c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, 1, 1))


def images(n, size, g):
    yy, xx = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=g) * size
    mask = (((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2).sqrt() < size / 5).float()[:, None]
    return mask + torch.randn(n, 1, size, size, generator=g), mask


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    base = f"/tmp/quiet-{os.getppid()}"
    os.makedirs(base, exist_ok=True)
    logging.basicConfig(filename=f"{base}/rank{rank}.log", level=logging.INFO)
    probe = environment(f"{base}/python{rank}.txt")
    control = Control()
    mirror = Mirror(f"{base}/mirror") if rank == 0 else None
    torch.manual_seed(0)
    net = unet()
    ddp = DDP(net)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    g = torch.Generator().manual_seed(rank)
    for epoch in range(5):
        count = 40 if rank == 0 else 40 + 11 * (epoch % 2)      # the second shard is longer now and then
        with Join([ddp]):
            for _ in range(count):
                x, y = images(12, 48, g)
                loss = nn.functional.binary_cross_entropy_with_logits(ddp(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
        logging.info("epoch %d loss %.4f", epoch, loss.item())
        for command in control.commands:
            if command[0] == "lr":
                opt.param_groups[0]["lr"] = float(command[1])
        if mirror:
            mirror.save({"net": net.state_dict(), "opt": opt.state_dict(), "pad": torch.zeros(1_000_000)}, f"{base}/epoch{epoch}.pt")
    dist.destroy_process_group()
    if mirror:
        mirror.finish()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
