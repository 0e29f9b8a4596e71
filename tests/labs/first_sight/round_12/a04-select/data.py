import torch


def blobs(n, seed, classes=5, width=96):
    centers = torch.randn(classes, width, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return centers[y] + 3.0 * torch.randn(n, width, generator=g), y
