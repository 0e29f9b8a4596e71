import os
import time

import torch
import torch.distributed as dist


class Checkpointer:
    """Writes the model in as many parts as there are writers, the first of them writes the index."""

    def __init__(self, root, writers):
        self.root = root
        self.writers = writers
        self.rank = dist.get_rank()
        self.group = None
        os.makedirs(root, exist_ok=True)

    def _writer_group(self):
        if self.group is None:
            self.group = dist.new_group(self.writers)
        return self.group

    def save(self, model, step):
        if self.rank not in self.writers:
            return
        group = self._writer_group()
        folder = os.path.join(self.root, f"step_{step:06d}")
        os.makedirs(folder, exist_ok=True)
        names = sorted(model.state_dict())
        mine = names[self.writers.index(self.rank)::len(self.writers)]
        state = model.state_dict()
        part = os.path.join(folder, f"part{self.writers.index(self.rank)}.pt")
        torch.save({n: state[n] for n in mine}, part)
        size = torch.tensor([os.path.getsize(part)])
        dist.all_reduce(size, group=group)
        if self.rank == self.writers[0]:
            with open(os.path.join(folder, "index.txt"), "w") as f:
                f.write(f"step {step}\nbytes {int(size)}\ntime {time.time():.0f}\n")
