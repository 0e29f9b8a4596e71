import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from archive import MaskArchive

logging.basicConfig(level=os.environ.get("LOGLEVEL", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("seg")


def net():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DDP(net())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    masks = MaskArchive("out/masks.bin") if rank == 0 else None
    for step in range(1, 401):
        x = torch.randn(4, 1, 48, 48)
        y = (x[:, 0] > 0.3).long()
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if step % 20 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if step % 4 == 0:
            probs = logits.softmax(1).detach()
            parts = [torch.empty_like(probs) for _ in range(dist.get_world_size())] if rank == 0 else None
            dist.gather(probs, parts, dst=0)
            if masks:
                masks.append(step, torch.cat(parts))
    dist.barrier()
    dist.destroy_process_group()


main()
