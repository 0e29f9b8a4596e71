import time

import torch

# pages with tables per source, in per cent
SOURCES = {0: ("annual_reports", 60), 1: ("letters", 34), 2: ("invoices", 75)}


def pages(rank, batch_size):
    name, share = SOURCES[rank % len(SOURCES)]
    g = torch.Generator().manual_seed(4242 + rank)
    while True:
        time.sleep(0.16)
        x = torch.randn(batch_size, 64, generator=g)
        layout = torch.randint(0, 11, (batch_size,), generator=g)
        has = torch.randint(0, 100, (batch_size,), generator=g) < share
        cells = torch.randint(0, 7, (batch_size,), generator=g)
        yield x, layout, has, cells
