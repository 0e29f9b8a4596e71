import json
import os
import random
import subprocess
import sys

import torch

WORDS = "the model learns from a corpus of short notes that were taken in many rooms over the years".split()
LATIN = "\u0142\u0105\u0119\u017c\u0161\u010d\u0159\u016f\u0151\u0171\u0219\u021b"
SHARDS = ["en-news", "en-books", "eu-web"]


class Normalizer:
    """Keeps one normd process for the life of the loader."""

    def __init__(self):
        here = os.path.dirname(os.path.abspath(__file__))
        self.proc = subprocess.Popen(
            [sys.executable, os.path.join(here, "normd.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, bufsize=1, encoding="utf-8",
            env=dict(os.environ, PYTHONIOENCODING="utf-8"))

    def __call__(self, text):
        self.proc.stdin.write(json.dumps({"text": text}) + "\n")
        self.proc.stdin.flush()
        return json.loads(self.proc.stdout.readline())["ids"]

    def close(self):
        self.proc.stdin.close()
        self.proc.wait()


def documents(shard, seed):
    rng = random.Random(seed)
    share = 0.7 if shard == "eu-web" else 0.01
    while True:
        words = [rng.choice(WORDS) for _ in range(24)]
        if rng.random() < share:
            for i in rng.sample(range(24), 9):
                words[i] = words[i][:-1] + rng.choice(LATIN)
        yield " ".join(words)


def batches(rank, size):
    normalizer = Normalizer()
    docs = documents(SHARDS[rank % len(SHARDS)], rank)
    while True:
        rows = [normalizer(next(docs)) for _ in range(size)]
        rows = [r + [0] * (64 - len(r)) for r in rows]
        yield torch.tensor(rows)
