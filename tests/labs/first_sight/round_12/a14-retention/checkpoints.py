import logging
import os
import shutil
import time

import torch

log = logging.getLogger("checkpoints")


class CheckpointManager:
    """Keeps a folder of checkpoints below its share of the volume."""

    def __init__(self, root, share_mb, keep_best=True):
        self.root = root
        self.share = share_mb * 2 ** 20
        self.keep_best = keep_best
        self.best = float("inf")
        self.pinned = set()
        shutil.rmtree(root, ignore_errors=True)
        os.makedirs(root)

    def _used(self):
        return sum(os.path.getsize(os.path.join(self.root, n)) for n in os.listdir(self.root))

    def _room_for(self, size):
        while self._used() + size > self.share:
            old = sorted(n for n in os.listdir(self.root) if n not in self.pinned)
            if old:
                os.unlink(os.path.join(self.root, old[0]))
                continue
            log.debug("nothing to remove, waiting for the archiver")
            time.sleep(1.0)

    def save(self, state, step, metric):
        size = sum(t.numel() * t.element_size() for t in state.values())
        self._room_for(size)
        name = f"step-{step:06d}.pt"
        torch.save(state, os.path.join(self.root, name))
        if self.keep_best and metric < self.best:
            self.best = metric
            self.pinned.add(name)
