import os

import torch


class Saver:
    def __init__(self, local, uploader, every):
        self.local, self.uploader, self.every = local, uploader, every
        os.makedirs(local, exist_ok=True)

    def maybe(self, step, model, opt):
        if step % self.every:
            return
        path = os.path.join(self.local, f"step{step:06d}.pt")
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, path)
        self.uploader.submit(path)
