import logging
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, NIGHTLY = 140, 70
log = logging.getLogger("meadow")


def batch(gen, n=32):
    x = torch.randn(n, 64, generator=gen)
    return x, (x[:, :8].sum(1) > 0).long()


@torch.no_grad()
def full_eval(model, budget=75.0):
    """The whole benchmark, on one rank; stops at its budget of time."""
    gen = torch.Generator().manual_seed(99)
    end, right, seen = time.time() + budget, 0, 0
    model.eval()
    while time.time() < end and seen < 4_000_000:
        x, y = batch(gen, 512)
        right += (model(x).argmax(1) == y).sum().item()
        seen += len(y)
        time.sleep(0.01)
    model.train()
    return right / seen, seen


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s %(levelname)s %(name)s %(message)s")
    gen = torch.Generator().manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        x, y = batch(gen)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.15)
        if step % 10 == 0:
            log.info("step %d/%d loss %.4f", step, STEPS, loss.item())
        if step == NIGHTLY:
            if rank == 0:
                accuracy, seen = full_eval(model.module)
                log.info("nightly: accuracy %.4f on %d", accuracy, seen)
            dist.barrier()
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        torch.save(model.module.state_dict(), "out/model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
