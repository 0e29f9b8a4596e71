import random


class Packer:
    """Puts whole documents together to rows of `length` tokens, from a shuffled buffer."""

    def __init__(self, docs, length, buffer=64, least=64, seed=0):
        self.docs = iter(docs)
        self.length = length
        self.least = least
        self.rng = random.Random(seed)
        self.buffer = []
        self.capacity = buffer
        self.fill()

    def fill(self):
        while len(self.buffer) < self.capacity:
            try:
                self.buffer.append(next(self.docs))
            except StopIteration:
                break

    def row(self):
        out, ends = [], []
        while self.buffer and self.length - len(out) >= self.least:
            i = self.rng.randrange(len(self.buffer))
            doc = self.buffer[i]
            if len(doc) > self.length:
                doc = doc[: self.length]
            if len(doc) > self.length - len(out):
                continue
            self.buffer.pop(i)
            out += doc
            ends.append(len(out))
            self.fill()
        return out + [0] * (self.length - len(out)), ends
