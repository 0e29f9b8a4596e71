import os
from concurrent.futures import ThreadPoolExecutor, wait

import torch
import torch.distributed as dist


class ShardSaver:
    """Saves a shard per rank in the background; rank 0 moves `latest` when all shards are on disk."""

    def __init__(self, root):
        self.root = root
        self.rank = dist.get_rank()
        self.group = dist.new_group(backend="gloo")
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self.pending = None

    def save(self, step, state):
        if self.pending is not None:
            wait([self.pending])
        self.pending = self.pool.submit(self._write, step, state)

    def _write(self, step, state):
        folder = os.path.join(self.root, f"step{step:06d}")
        os.makedirs(folder, exist_ok=True)
        part = os.path.join(folder, f"shard{self.rank}.tmp")
        torch.save(state, part)
        os.replace(part, part[:-4] + ".pt")
        dist.barrier(group=self.group)
        if self.rank == 0:
            with open(os.path.join(self.root, "latest"), "w") as f:
                f.write(str(step))

    def close(self):
        if self.pending is not None:
            wait([self.pending])
        self.pool.shutdown()
