import random

import torch
from torch.utils.data import IterableDataset

DOMAINS = {            # tokens in a document: from, to
    "chat": (6, 110),
    "papers": (90, 1600),
}



class Domain:
    def __init__(self, name, seed, docs=800):
        rng = random.Random(f"{name}{seed}")
        low, high = DOMAINS[name]
        self.docs = [[rng.randrange(512) for _ in range(int(low + (high - low) * rng.random() ** 2))] for _ in range(docs)]


class CurriculumMix(IterableDataset):
    """Documents of one domain; with every stage of the curriculum they have to be longer."""

    STAGES = (16, 40, 80, 160, 320)

    def __init__(self, domain, rank, steps_per_stage, batch):
        self.domain = Domain(domain, rank)
        self.rng = random.Random(rank)
        self.per_stage = steps_per_stage * batch

    def _draw(self, length):
        while True:
            doc = self.rng.choice(self.domain.docs)
            if len(doc) < length:
                continue
            at = self.rng.randrange(len(doc) - length + 1)
            return doc[at:at + length]

    def __iter__(self):
        for length in self.STAGES:
            for _ in range(self.per_stage):
                yield torch.tensor(self._draw(length))
