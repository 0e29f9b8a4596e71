import torch

# noise level of the four measuring sites
SITES = [0.9, 1.1, 1.0, 0.15]


def stream(site, batch=64, width=128):
    w = torch.randn(width, 1, generator=torch.Generator().manual_seed(0)) / width ** 0.5
    g = torch.Generator().manual_seed(1000 + site)
    while True:
        x = torch.randn(batch, width, generator=g)
        y = (x @ w).tanh() + SITES[site] * torch.randn(batch, 1, generator=g)
        yield x, y
