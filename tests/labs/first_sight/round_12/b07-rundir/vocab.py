import collections
import json
import os
import random
import time

SYLL = "ka re mo ti sul ven dor pa li nu sha tor".split()


def corpus(n=3000, seed=4):
    rng = random.Random(seed)
    for _ in range(n):
        label = rng.randrange(3)
        words = ["".join(rng.choices(SYLL[label * 3:label * 3 + 6], k=2)) for _ in range(rng.randrange(5, 15))]
        yield words, label


def build(path, size=200):
    counts = collections.Counter(w for words, _ in corpus() for w in words)
    with open(path + ".part", "w") as f:
        json.dump({w: i + 1 for i, (w, _) in enumerate(counts.most_common(size))}, f)
    os.replace(path + ".part", path)


def get(run_dir, main_process):
    """The main process counts; the others take what it has written."""
    path = os.path.join(run_dir, "vocab.json")
    if main_process:
        build(path)
    while not os.path.exists(path):
        time.sleep(0.5)
    with open(path) as f:
        return json.load(f)
