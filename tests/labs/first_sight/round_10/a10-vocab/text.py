import collections
import multiprocessing
import os
import random
import time

from lockedcache import locked, read, write

SYLLABLES = "ka lo mi ren tas vel dor shi un pra ost ine qua bel for".split()


def sentence(rng):
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(rng.randint(8, 40))]


def _usage(folder, interval):
    """Writes how large the cache is, for the dashboard."""
    while True:
        size = sum(e.stat().st_size for e in os.scandir(folder))
        with open(os.path.join(folder, "usage.txt"), "w") as fh:
            fh.write(f"{int(time.time())} {size}\n")
        time.sleep(interval)


class Vocabulary:
    def __init__(self, folder, version, size=2000):
        self.folder = folder
        with locked(folder):
            words = read(folder, f"vocab-{version}.json")
            if words is None:
                words = self._count(version, size)
                write(folder, f"vocab-{version}.json", words)
                watch = multiprocessing.get_context("fork").Process(
                    target=_usage, args=(folder, 15), daemon=True)
                watch.start()
        self.index = {w: i + 1 for i, w in enumerate(words)}

    @staticmethod
    def _count(version, size):
        rng, counts = random.Random(version), collections.Counter()
        for _ in range(20000):
            counts.update(sentence(rng))
        return [w for w, _ in counts.most_common(size)]

    def __len__(self):
        return len(self.index) + 1

    def encode(self, words, length):
        ids = [self.index.get(w, 0) for w in words][:length]
        return ids + [0] * (length - len(ids))
