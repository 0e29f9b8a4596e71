"""Two kinds of state: the model (rank 0, often, it is small) and each rank's place in its data."""
import json
import os

import torch


def put(path, data):
    torch.save(data, path + ".new")
    os.replace(path + ".new", path)


class State:
    def __init__(self, root, rank, model_every=20, data_every=50):
        self.root, self.rank = root, rank
        self.model_every, self.data_every = model_every, data_every
        self.model_path = os.path.join(root, "model.pt")
        self.data_path = os.path.join(root, f"data-{rank}.pt")

    def resume(self, model, opt, reader):
        """Returns the step to go on from."""
        step = 0
        if os.path.exists(self.model_path):
            blob = torch.load(self.model_path, weights_only=True)
            model.load_state_dict(blob["model"])
            opt.load_state_dict(blob["opt"])
            step = blob["step"] if self.rank == 0 else step
        if os.path.exists(self.data_path):
            blob = torch.load(self.data_path, weights_only=True)
            reader.seek(blob["position"])
            step = max(step, blob["step"])
        return step

    def maybe_save(self, step, model, opt, reader):
        if self.rank == 0 and step % self.model_every == 0:
            put(self.model_path, {"model": model.state_dict(), "opt": opt.state_dict(), "step": step})
        if step % self.data_every == 0:
            put(self.data_path, {"position": reader.position, "step": step})

    def progress(self, step):
        with open(os.path.join(self.root, f"worker{self.rank}.progress.new"), "w") as f:
            f.write(f"{step} {os.getpid()}")
        os.replace(f.name, f.name[:-4])
        return json.dumps({"step": step})
