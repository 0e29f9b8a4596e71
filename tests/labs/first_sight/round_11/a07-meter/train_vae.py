import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from meters import Recorder


class VAE(nn.Module):
    def __init__(self, d=196, h=128, z=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()
        return self.dec(z), kl


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--log-dir", default="out")
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--steps-per-epoch", type=int, default=120)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(args.log_dir, exist_ok=True)
    torch.manual_seed(rank)
    model = DDP(VAE())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    rec = Recorder(os.path.join(args.log_dir, "metrics.jsonl"), every=0.5) if rank == 0 else None
    for epoch in range(args.epochs):
        for it in range(args.steps_per_epoch):
            t = time.perf_counter()
            x = torch.rand(32, 196).round()
            time.sleep(0.04)
            recon, kl = model(x)
            bce = F.binary_cross_entropy_with_logits(recon, x, reduction="none")
            loss = bce.sum(-1).mean() + kl
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rec:
                rec.add("loss", loss.item())
                rec.add("kl", kl.item())
                rec.add("time", time.perf_counter() - t)
                for v in bce.detach().flatten().tolist()[:6000]:
                    rec.add("pixel", v)
        if rec:
            print(f"epoch {epoch}: {rec.summary()}", flush=True)
            rec.compact()
    dist.barrier()
    dist.destroy_process_group()


main()
