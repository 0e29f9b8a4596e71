"""Traces come from the tape robot: every record has to be wound to, then it is read slowly."""
import time

import torch


class Tape:
    def __init__(self, drive, seek=11.0, rate=40):
        self.g = torch.Generator().manual_seed(drive)
        self.seek, self.rate = seek, rate
        self.position = 0

    def read(self, record, traces=120, samples=500):
        time.sleep(self.seek * (0.8 + 0.4 * ((record * 37) % 10) / 10))
        rows = []
        for _ in range(traces):
            rows.append(torch.randn(samples, generator=self.g).cumsum(0) / 10)
            time.sleep(1 / self.rate)
        self.position = record
        return torch.stack(rows)
