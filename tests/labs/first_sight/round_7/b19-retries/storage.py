import os

import torch


class Bucket:
    """Training data behind a gateway that drops connections now and then."""

    def __init__(self, rank):
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.rank = rank
        self.w = torch.randn(16, generator=torch.Generator().manual_seed(1))

    def read(self, step):
        if self.rank == 1 and (self.attempt, step) in ((0, 70), (1, 130)):
            raise ConnectionResetError(f"GET part-{step:04d}: connection reset by peer")
        g = torch.Generator().manual_seed(step * 7 + self.rank)
        x = torch.randn(32, 16, generator=g)
        return x, x @ self.w
