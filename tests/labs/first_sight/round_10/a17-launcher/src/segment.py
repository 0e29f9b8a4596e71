"""Toy segmentation: discs on noise, a small U-Net without skips."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def discs(n, size, gen):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=gen) * size
    r = torch.rand(n, 1, 1, generator=gen) * size / 4 + 2
    mask = ((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2 < r ** 2).float()
    return (mask + torch.randn(n, size, size, generator=gen) * 0.5)[:, None], mask[:, None]


def unet(ch=8):
    return nn.Sequential(
        nn.Conv2d(1, ch, 3, 2, 1), nn.ReLU(), nn.Conv2d(ch, 2 * ch, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(ch, 1, 4, 2, 1))


def dice(logits, mask):
    p = (logits > 0).float()
    return (2 * (p * mask).sum() / (p.sum() + mask.sum() + 1e-6)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--size", type=int, default=48)
    ap.add_argument("--batch", type=int, default=8)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.DEBUG, format=f"%(asctime)s %(levelname)-5s rank{rank} %(funcName)s: %(message)s")
    log = logging.getLogger()
    torch.manual_seed(0)
    model = DistributedDataParallel(unet())
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    gen = torch.Generator().manual_seed(rank)
    level = log.info if rank == 0 else log.debug
    for step in range(1, a.steps + 1):
        t = time.perf_counter()
        x, m = discs(a.batch, a.size, gen)
        t1 = time.perf_counter()
        out = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(out, m)
        opt.zero_grad()
        loss.backward()
        opt.step()
        t2 = time.perf_counter()
        if rank != 0 or step % 25 == 0:
            level(f"step {step}/{a.steps} loss {loss.item():.4f} dice {dice(out, m):.3f}")
        if rank != 0:
            log.debug(f"data {1e3 * (t1 - t):.1f} ms, step {1e3 * (t2 - t1):.1f} ms, "
                      f"lr {opt.param_groups[0]['lr']:.1e}, pixels {int(m.sum())}")
        time.sleep(0.03)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
