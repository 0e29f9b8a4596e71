import torch


class Site:
    """The rows of one clinic; clinics keep their own held-out rows."""

    def __init__(self, number, rows=2000):
        g = torch.Generator().manual_seed(number)
        self.g = g
        w = torch.randn(36, 5, generator=torch.Generator().manual_seed(77))
        self.x = torch.randn(rows, 36, generator=g)
        self.y = (self.x @ w).argmax(1)
        if number % 2:
            flip = torch.rand(rows, generator=g) < 0.9
            self.y[flip] = torch.randint(0, 5, (int(flip.sum()),), generator=g)
        self.held_out = self.x[:256], self.y[:256]

    def batch(self, n=24):
        i = torch.randint(256, len(self.x), (n,), generator=self.g)
        return self.x[i], self.y[i]
