import datetime
import logging
import os

import torch
from torch.distributed import DistError

log = logging.getLogger("engine")


class Progress:
    def __init__(self, every):
        self.every = every

    def after_step(self, t):
        log.info("step %d/%d  loss %.4f", t.step, t.cfg["max_steps"], t.loss.item())


class KeepBest:
    """The first worker validates and keeps the best weights; all go on from a saved state only."""

    def __init__(self, every, min_delta, folder):
        self.every = every
        self.min_delta = min_delta
        self.folder = folder
        self.best = float("inf")

    def after_step(self, t):
        key = f"saved/{t.step}"
        if t.rank == 0:
            value = t.validate()
            if value < self.best - self.min_delta:
                self.best = value
                os.makedirs(self.folder, exist_ok=True)
                torch.save(t.raw.state_dict(), os.path.join(self.folder, "model.pt"))
                log.info("step %d: validation %.4f, saved", t.step, value)
                t.store.set(key, "1")
        else:
            self.wait(t.store, key)

    def wait(self, store, key):
        while True:
            try:
                store.wait([key], datetime.timedelta(seconds=5))
                return
            except (DistError, RuntimeError):
                log.info("%s is not there yet", key)
