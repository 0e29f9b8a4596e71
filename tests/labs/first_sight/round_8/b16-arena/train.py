import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from arena import battle


def log(**fields):
    if dist.get_rank() == 0:
        print(" ".join(f"{k}={v}" for k, v in fields.items()), file=sys.stderr, flush=True)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(160, 480), nn.GELU(), nn.Linear(480, 160))
    ddp = DDP(model)
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for step in range(1, 241):
        x = torch.randn(96, 160)
        loss = (ddp(x) - x.roll(3, 1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.06)
        if step % 15 == 0:
            log(step=step, loss=round(loss.item(), 4), lr=opt.param_groups[0]["lr"])
        if step in (80, 160):
            if dist.get_rank() == 0:
                log(step=step, arena=round(battle(model, 20 if step == 80 else 240), 4))
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
