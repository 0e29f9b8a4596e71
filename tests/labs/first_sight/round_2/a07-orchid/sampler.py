import random


class Curriculum:
    """Batches of documents, easy ones first: the floor rises with the steps."""

    def __init__(self, docs, batch_size, steps, seed=0):
        self.docs, self.batch_size, self.steps = docs, batch_size, steps
        self.rng = random.Random(seed)

    def floor(self, step):
        return 0.9 * step / self.steps

    def draw(self, floor):
        batch = []
        while len(batch) < self.batch_size:
            doc = self.rng.choice(self.docs)
            if doc[0] >= floor:
                batch.append(doc)
        return batch

    def __len__(self):
        return self.steps

    def __iter__(self):
        for step in range(self.steps):
            yield self.draw(self.floor(step))
