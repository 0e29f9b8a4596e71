import glob
import os
import re

import torch


class State:
    """Each rank keeps its own files: optimizer moments, step, data position. Weights come from the first rank."""

    def __init__(self, folder, rank, keep=2):
        self.folder, self.rank, self.keep = folder, rank, keep

    def files(self):
        found = glob.glob(os.path.join(self.folder, f"rank{self.rank}-*.pt"))
        return sorted(found, key=lambda p: int(re.search(r"-(\d+)\.pt$", p).group(1)))

    def save(self, step, model, opt, source):
        path = os.path.join(self.folder, f"rank{self.rank}-{step}.pt")
        torch.save({"step": step, "model": model.state_dict(), "opt": opt.state_dict(), "data": source.get_state()}, path)
        for old in self.files()[:-self.keep]:
            os.unlink(old)

    def load(self, model, opt, source):
        files = self.files()
        if not files:
            return 0
        s = torch.load(files[-1])
        model.load_state_dict(s["model"])
        opt.load_state_dict(s["opt"])
        source.set_state(s["data"])
        return s["step"]
