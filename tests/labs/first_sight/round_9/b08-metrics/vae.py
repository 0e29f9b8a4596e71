import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sink import Sink


class VAE(nn.Module):
    def __init__(self, n=784, h=512, z=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, n))

    def forward(self, x):
        mu, lv = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        kl = -0.5 * (1 + lv - mu ** 2 - lv.exp()).sum(-1).mean()
        rec = nn.functional.binary_cross_entropy_with_logits(self.dec(z), x, reduction="none").sum(-1).mean()
        return rec, kl


def digits(g, rows=128):
    yy, xx = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    c = torch.rand(rows, 2, generator=g) * 16 + 6
    r = torch.rand(rows, 1, generator=g) * 5 + 2
    d = ((yy[None] - c[:, :1, None]) ** 2 + (xx[None] - c[:, 1:, None]) ** 2).sqrt()
    return (d < r[:, :, None]).float().flatten(1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--metrics-port", type=int)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sink = Sink(a.metrics_port) if rank == 0 else None
    torch.manual_seed(rank)
    model = DDP(VAE())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(4000):
        t = time.perf_counter()
        rec, kl = model(digits(g))
        beta = min(1.0, step / 500)
        opt.zero_grad()
        (rec + beta * kl).backward()
        gn = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if sink:
            sink.log(step=step, rec=rec.item(), kl=kl.item(), beta=beta, grad_norm=gn.item(),
                     seconds=time.perf_counter() - t, rows=128 * dist.get_world_size())
    dist.destroy_process_group()
