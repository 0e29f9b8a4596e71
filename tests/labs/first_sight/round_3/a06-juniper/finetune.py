import logging
import os
import time

import torch
import torch.distributed as dist
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("finetune")


def main():
    log.info("card %s: starting, world size %s", os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"])
    body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    head = nn.Linear(64, 5)
    log.info("card %s: base model loaded", os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", init_method="env://")
    head = nn.parallel.DistributedDataParallel(head)
    opt = torch.optim.AdamW(head.parameters(), 1e-3)
    for step in range(1, 501):
        x, y = torch.randn(16, 64), torch.randint(0, 5, (16,))
        with torch.no_grad():
            h = body(x)
        loss = nn.functional.cross_entropy(head(h), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.2)
        if step % 25 == 0:
            log.info("step %d loss %.4f", step, loss.item())


if __name__ == "__main__":
    main()
