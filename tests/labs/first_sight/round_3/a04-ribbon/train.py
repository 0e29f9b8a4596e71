import sys
import time

import torch
import torch.distributed as dist

from stages import WIDTH, First, Last, Middle

ROWS, BATCH, MICRO = 1450, 16, 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = (First, Middle, Last)[rank](MICRO)
    opt = torch.optim.Adam(stage.net.parameters(), 1e-3)
    g = torch.Generator().manual_seed(7)
    x, y = torch.randn(ROWS, WIDTH, generator=g), torch.randint(0, 10, (ROWS,), generator=g)
    for epoch in range(20):
        order = torch.randperm(ROWS, generator=g)
        for i, rows in enumerate(order.split(BATCH)):
            opt.zero_grad()
            loss = stage.run(x[rows], y[rows])
            opt.step()
            time.sleep(0.2)
            if loss is not None and i % 10 == 0:
                sys.stderr.write(f"epoch {epoch:2d}  batch {i:4d}  loss {loss:.4f}\n")


if __name__ == "__main__":
    main()
