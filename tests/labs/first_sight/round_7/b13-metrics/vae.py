import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from metrics import Metrics


class VAE(nn.Module):
    def __init__(self, dim=64, z=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 96), nn.ReLU(), nn.Linear(96, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 96), nn.ReLU(), nn.Linear(96, dim))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        out = self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
        kl = 0.5 * (mu ** 2 + logvar.exp() - logvar - 1).sum(-1).mean()
        return (out - x).square().sum(-1).mean(), kl


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(VAE())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    metrics = Metrics() if rank == 0 else None
    basis = torch.randn(4, 64, generator=torch.Generator().manual_seed(9))
    steps = int(os.environ.get("STEPS", "220"))
    for step in range(1, steps + 1):
        x = torch.randn(64, 4) @ basis
        rec, kl = model(x)
        loss = rec + min(1.0, step / 100) * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.04)
        if metrics:
            metrics.log(step=step, rec=rec.item(), kl=kl.item())
            if step % 20 == 0:
                print(f"[{step:>4}/{steps}] rec {rec.item():7.2f} kl {kl.item():6.2f}", flush=True)
    if rank == 0:
        print("training finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
