import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import archive

log = logging.getLogger("vae")


class VAE(nn.Module):
    def __init__(self, d=256, h=640, z=32):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, d))

    def forward(self, x):
        mean, logvar = self.enc(x).chunk(2, -1)
        y = self.dec(mean + torch.randn_like(mean) * (logvar / 2).exp())
        kl = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(-1).mean()
        return (y - x).square().sum(-1).mean() + kl


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--bwlimit", type=float, default=1e9, help="KiB/s")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    model = DDP(VAE())
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    gen = torch.Generator().manual_seed(rank)
    basis = torch.randn(20, 256)
    for step in range(1, 241):
        x = torch.randn(64, 20, generator=gen) @ basis / 5
        loss = model(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            log.info("step %d loss %.2f", step, loss.item())
        if step % 120 == 0:
            folder = os.path.join(args.out, f"step{step}")
            os.makedirs(folder, exist_ok=True)
            # the model on the first rank, the moments of the optimizer on the second
            state = model.module.state_dict() if rank == 0 else opt.state_dict()
            archive.save_shard(folder, rank, state, args.bwlimit)
            dist.barrier()
            log.info("saved %s", os.path.basename(folder))
    dist.destroy_process_group()


main()
