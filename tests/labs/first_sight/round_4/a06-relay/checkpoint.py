import time

import torch


class Checkpointer:
    """The main process writes, all others go on as soon as the checkpoint is complete."""

    def __init__(self, cfg):
        self.cfg = cfg

    def save(self, step, model, opt):
        folder = self.cfg.run_dir / f"step_{step}"
        marker = folder / "COMPLETE"
        if self.cfg.main:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, folder / "state.pt")
            marker.touch()
        else:
            while not marker.exists():
                time.sleep(0.5)
        return folder
