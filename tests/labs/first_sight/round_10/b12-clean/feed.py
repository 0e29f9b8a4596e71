import multiprocessing as mp

import torch

import cleaning
import documents


class Feed:
    """Cleans and encodes shard after shard with a pool of workers."""

    def __init__(self, rank, workers=2, cpu_seconds=6):
        self.rank, self.next_shard = rank, 0
        self.pool = mp.get_context("spawn").Pool(workers, cleaning.init_worker, (cpu_seconds,))
        self.rows = []

    def _load(self):
        docs = documents.shard(self.next_shard, self.rank)
        self.next_shard += 1
        self.rows = [r for r in self.pool.map(cleaning.encode, docs, chunksize=50) if any(r)]

    def batch(self, n):
        if len(self.rows) < n:
            self._load()
        out, self.rows = self.rows[:n], self.rows[n:]
        return torch.tensor(out)

    def close(self):
        self.pool.close()
        self.pool.join()
