import collections
import random
import threading


class Vocab:
    """Word ids by frequency. Rare words become <unk>; rebuild() counts anew."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.ids = {}

    def fit(self, docs):
        for doc in docs:
            self.counts.update(doc.split())
        self.ids = {w: i + 1 for i, (w, _) in enumerate(self.counts.most_common(self.size - 1))}

    def encode(self, doc):
        with self.lock:
            return [self.ids.get(w, 0) for w in doc.split()]

    def rebuild(self, docs, rounds=500):
        with self.lock:
            for _ in range(rounds):
                counts = collections.Counter(self.counts)
                for doc in docs:
                    counts.update(doc.split())
            self.counts = counts
            self.ids = {w: i + 1 for i, (w, _) in enumerate(counts.most_common(self.size - 1))}


def make_docs(seed, n, base):
    rng = random.Random(seed)
    return [" ".join(f"w{base + int(rng.paretovariate(1.1)) % 4000}" for _ in range(120)) for _ in range(n)]
