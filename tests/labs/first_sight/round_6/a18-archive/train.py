import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from archive import store

EPOCHS = 4
SECONDS = 11  # an epoch goes on for so long, whatever the machine


def net():
    return nn.Sequential(nn.Linear(384, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 64))


def line(text):
    if sys.stderr.isatty():
        sys.stderr.write("\r" + text)
    else:
        sys.stderr.write(text + "\n")
    sys.stderr.flush()


def go_on(until):
    """The first rank's clock counts, so that all stop at the same step."""
    flag = torch.tensor([float(time.time() < until)])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DDP(net())
    opt = torch.optim.Adam(model.parameters(), 5e-4)
    gen = torch.Generator().manual_seed(rank * 13)
    probe = torch.randn(384, 64, generator=torch.Generator().manual_seed(1))
    it = 0
    for epoch in range(EPOCHS):
        until = time.time() + SECONDS
        while go_on(until):
            x = torch.randn(128, 384, generator=gen)
            loss = nn.functional.cross_entropy(model(x), (x @ probe).argmax(1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            it += 1
            if rank == 1 and it % 20 == 0:
                line(f"epoch {epoch} it {it} loss {loss.item():.3f}")
        if rank == 0:
            took = store({"model": model.module.state_dict(), "opt": opt.state_dict(), "it": it}, f"epoch{epoch}.arc")
            line(f"epoch {epoch} archived in {took:.1f} s")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
