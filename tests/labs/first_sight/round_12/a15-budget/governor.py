import time

import torch
import torch.distributed as dist


class Governor:
    """Keeps the mean power of the room below the contract: after a window of work comes a pause, for all ranks."""

    def __init__(self, window=40, pause=28.0):
        self.window, self.pause = window, pause
        self.steps = 0

    def step(self):
        self.steps += 1
        if self.steps % self.window == 0:
            pause = torch.tensor([self.pause])
            dist.broadcast(pause, 0)
            time.sleep(pause.item())
