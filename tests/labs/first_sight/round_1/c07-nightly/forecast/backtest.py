import time

import torch


def stations(n=460):
    for i in range(n):
        g = torch.Generator().manual_seed(i)
        yield torch.randn(64, 20, generator=g)


@torch.no_grad()
def run(model, report):
    """Roll every station of the archive forward; writes the table when all are through."""
    table = []
    for x in stations():
        for _ in range(12):
            y = model(x)
            x = torch.cat([x[:, 1:], y], 1)
        table.append(x.std().item())
        time.sleep(0.15)
    with open(report, "w") as f:
        f.write("\n".join(f"{v:.5f}" for v in table))
    return sum(table) / len(table)
