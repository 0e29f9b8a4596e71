import hashlib
import os

import torch


def build(path, rows, dim, seed):
    """Fourier features of a synthetic sensor signal, written once and then memory mapped."""
    g = torch.Generator().manual_seed(seed)
    freq = torch.rand(dim // 2, generator=g) * 8
    blocks, check = [], hashlib.sha256()
    for lo in range(0, rows, 1000):
        t = torch.linspace(lo, lo + 1000, 1000)[:, None] / 97.0
        noise = torch.randn(1000, dim // 2, generator=g) * 0.1
        b = torch.cat([torch.sin(t * freq) + noise, torch.cos(t * freq) + noise], 1)
        for row in b:
            check.update(row.numpy().tobytes())
        blocks.append(b)
    x = torch.cat(blocks)
    y = (x[:, : dim // 4].sum(1, keepdim=True).tanh() + x[:, -1:] * 0.3)
    torch.save({"x": x, "y": y, "sha": check.hexdigest()}, path + ".part")
    os.replace(path + ".part", path)


def load(path):
    d = torch.load(path)
    return d["x"], d["y"]
