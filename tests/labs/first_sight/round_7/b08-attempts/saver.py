import os

import torch

from sync import Rally, attempts


class Saver:
    """Every rank writes its part into a staging folder; rank 0 moves it to where readers look."""

    def __init__(self, root, rank, keep=2):
        self.root, self.rank, self.keep = root, rank, keep
        self.rally = Rally("ckpt")
        self.mine = []

    @attempts(3)
    def _stage(self, step, state, notes):
        folder = os.path.join(self.root, f"staging-{step}", f"part{self.rank}")
        os.makedirs(folder, exist_ok=True)
        torch.save(state, os.path.join(folder, "state.pt"))
        if notes:
            with open(os.path.join(folder, "notes.txt"), "w") as f:
                f.write("\n".join(notes))
        self.rally.arrive(step)
        if step not in self.mine:
            self.mine.append(step)
        self._rotate()

    def _rotate(self):
        while len(self.mine) > self.keep:
            old = os.path.join(self.root, f"step-{self.mine.pop(0)}", f"part{self.rank}")
            os.remove(os.path.join(old, "state.pt"))
            os.rmdir(old)

    def save(self, step, state, notes=()):
        self._stage(step, state, notes)
        self.rally.wait(step)
        if self.rank == 0:
            os.rename(os.path.join(self.root, f"staging-{step}"), os.path.join(self.root, f"step-{step}"))
