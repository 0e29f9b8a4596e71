import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tracker import Tracker

PORT = "29705"


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
        self.dec = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (logvar / 2).exp()
        return self.dec(z), mu, logvar


def bar(step, total, text):
    full = int(30 * step / total)
    sys.stdout.write(f"\r|{'#' * full}{'.' * (30 - full)}| {step}/{total} {text}")
    sys.stdout.flush()


def run(rank, world, out, total):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", PORT
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(3 + rank)
    tracker = Tracker(os.path.join(out, "metrics.jsonl")) if rank == 0 else None
    base = torch.randn(12, 64)
    net = DDP(VAE())
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(1, total + 1):
        x = base[torch.randint(0, 12, (64,))] + 0.1 * torch.randn(64, 64)
        y, mu, logvar = net(x)
        rec = F.mse_loss(y, x)
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).mean()
        loss = rec + 0.01 * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        if tracker:
            tracker.log(step=step, rec=rec.item(), kl=kl.item())
            if step % 5 == 0:
                bar(step, total, f"rec {rec.item():.4f} kl {kl.item():.3f}")
        if step % 1000 == 0 and rank == 0:
            torch.save(net.module.state_dict(), os.path.join(out, "vae.pt"))
    if tracker:
        tracker.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(2, tempfile.mkdtemp(prefix="vae-"), 6000), nprocs=2)
