"""Batches of documents by length: as many as fit into a budget of tokens, never less than 3/4 full."""
import random


class PackedSampler:
    def __init__(self, lengths, budget, rank, world, seed=0):
        self.lengths, self.budget = lengths, budget
        self.rank, self.world, self.seed = rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rng = random.Random(self.seed + self.epoch)
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        pool = order[self.rank::self.world]
        while pool:
            yield self._fill(pool, rng)

    def _fill(self, pool, rng):
        batch, used = [], 0
        while used < self.budget * 3 // 4:
            k = rng.randrange(len(pool)) if pool else -1
            if k < 0:
                break
            n = self.lengths[pool[k]]
            if used + n <= self.budget:
                pool[k], pool[-1] = pool[-1], pool[k]
                batch.append(pool.pop())
                used += n
        return batch
