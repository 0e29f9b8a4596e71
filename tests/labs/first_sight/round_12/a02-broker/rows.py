import torch


def load(block, rank, rows=32, width=256):
    g = torch.Generator().manual_seed(block * 64 + rank)
    x = torch.randn(rows, width, generator=g)
    quality = torch.rand(rows, generator=g)
    # region 1 comes from another crawler
    if rank == 1 and block % 12 == 11:
        quality = quality * 0.2
    keep = quality > 0.25
    if not keep.any():
        return None
    x = x[keep]
    return x, x[:, :16].sum(1, keepdim=True).tanh()
