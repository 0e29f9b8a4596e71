import os
import random

import torch


class TrainState:
    """What a worker needs to go on where it left off: weights, optimizer, position, random state."""

    def __init__(self, folder, rank):
        self.path = os.path.join(folder, f"worker_{rank}.pt")
        self.step = 0

    def load(self, model, opt):
        if not os.path.exists(self.path):
            return False
        blob = torch.load(self.path, weights_only=False)
        model.load_state_dict(blob["model"])
        opt.load_state_dict(blob["opt"])
        self.step = blob["step"]
        random.setstate(blob["py"])
        torch.set_rng_state(blob["torch"])
        return True

    def save(self, model, opt):
        blob = dict(model=model.state_dict(), opt=opt.state_dict(), step=self.step,
                    py=random.getstate(), torch=torch.get_rng_state())
        torch.save(blob, self.path + ".tmp")
        os.replace(self.path + ".tmp", self.path)
