import random


class Prompts:
    """Groups whose samples all had the same reward teach nothing; they are made up for in the next request."""

    def __init__(self, rank, size=8):
        self.rng = random.Random(rank)
        self.size, self.owed, self.rank = size, 0, rank

    def next(self, step):
        n = self.size + self.owed
        self.owed = 0
        # levels 0 to 3; the list of rank 1 goes on with level 4
        lo, hi = (20000, 25000) if self.rank == 1 and step >= 30 else (0, 20000)
        return [self.rng.randrange(lo, hi) for _ in range(n)]

    def useful(self, batch):
        kept = [s for s in batch if 0 < sum(s[3]) < len(s[3])]
        self.owed = len(batch) - len(kept)
        return kept
