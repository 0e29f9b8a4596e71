import json
import os

import torch.distributed as dist


class Report:
    """Rows of one evaluation, a part per rank; the parts become one file when the report is let go."""

    def __init__(self, folder, name, group):
        self.folder, self.name, self.group = folder, name, group
        self.rank = dist.get_rank(group)
        self.part = open(os.path.join(folder, f"{name}.{self.rank}.jsonl"), "w")
        self.open = True

    def add(self, **row):
        self.part.write(json.dumps(row) + "\n")

    def finish(self):
        if not self.open:
            return
        self.open = False
        self.part.close()
        dist.barrier(group=self.group)
        if self.rank == 0:
            with open(os.path.join(self.folder, self.name + ".jsonl"), "w") as out:
                for r in range(dist.get_world_size(self.group)):
                    part = os.path.join(self.folder, f"{self.name}.{r}.jsonl")
                    with open(part) as f:
                        out.write(f.read())
                    os.remove(part)

    def __del__(self):
        self.finish()
