import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from saver import Saver

STEPS, SAVE_EVERY, LOG_EVERY = 400, 20, 50


class Mixer(nn.Module):
    def __init__(self, n=24, d=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(12, d)
        self.tok = nn.ModuleList(nn.Linear(n, n) for _ in range(depth))
        self.chan = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU()) for _ in range(depth))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        x = self.inp(x)
        for t, c in zip(self.tok, self.chan):
            x = x + t(x.transpose(1, 2)).transpose(1, 2)
            x = x + c(x)
        return self.out(x.mean(1)).squeeze(-1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=2))
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DistributedDataParallel(Mixer())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, STEPS)
    saver = Saver("checkpoints") if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        x = torch.randn(32, 24, 12, generator=g)
        loss = nn.functional.mse_loss(model(x), x[:, :, 0].sum(1).tanh())
        loss.backward()
        opt.step()
        opt.zero_grad()
        sched.step()
        if saver and step % SAVE_EVERY == 0:
            saver.put(step, model.module.state_dict())
        if rank == 0 and step % LOG_EVERY == 0:
            print({"step": step, "loss": round(loss.item(), 5), "lr": sched.get_last_lr()[0]}, flush=True)
    if saver:
        saver.close()
    dist.barrier()
    if rank == 0:
        print("training finished, checkpoints in checkpoints/", flush=True)
    dist.destroy_process_group()


main()
