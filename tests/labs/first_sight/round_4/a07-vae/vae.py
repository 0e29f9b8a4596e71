import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn


class VAE(nn.Module):
    def __init__(self, d=256, z=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 128), nn.ReLU(), nn.Linear(128, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 128), nn.ReLU(), nn.Linear(128, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (logvar / 2).exp()
        return self.dec(z), mu, logvar


def record(step, rank, rec, kl, mu):
    print(json.dumps({"step": step, "rank": rank, "rec": round(rec.item(), 5), "kl": round(kl.item(), 5),
                      "mu": [[round(v, 4) for v in row] for row in mu[:6].tolist()]}))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--steps", type=int, default=3000)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(VAE())
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    torch.manual_seed(rank)
    basis = torch.randn(8, 256)
    for step in range(a.steps):
        x = torch.randn(64, 8) @ basis
        out, mu, logvar = net(x)
        rec = (out - x).pow(2).mean()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()
        opt.zero_grad()
        (rec + 0.01 * kl).backward()
        opt.step()
        time.sleep(0.3)
        if step % a.log_every == 0:
            record(step, rank, rec.detach(), kl.detach(), mu.detach())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
