"""A window of readings is complete only when its time is over."""
import time

import torch


class Windows:
    def __init__(self, seconds, seed):
        self.seconds, self.gen = seconds, torch.Generator().manual_seed(seed)
        self.next = time.monotonic() + seconds

    def __iter__(self):
        return self

    def __next__(self):
        while time.monotonic() < self.next:
            time.sleep(max(0.0, self.next - time.monotonic()))
        self.next = time.monotonic() + self.seconds
        t = torch.arange(256) / 20
        phase = torch.rand(32, 1, generator=self.gen) * 6
        return torch.sin(t + phase) + 0.1 * torch.randn(32, 256, generator=self.gen)
