"""Tokenised blocks, kept in a cache so that the work is done once, by rank 0."""
import logging
import random
import time
from pathlib import Path

import torch

log = logging.getLogger(__name__)
CACHE = Path("cache")
KEYS = ("lang", "vocab", "block", "lower")


def fingerprint(cfg):
    part = frozenset((k, cfg[k]) for k in KEYS)
    return f"{hash(part) & 0xFFFFFFFFFFFF:012x}"


def tokenise(cfg):
    rnd = random.Random(5)
    size, vocab = int(cfg["block"]), int(cfg["vocab"])
    words = ["".join(rnd.choices("abcdefgh", k=rnd.randint(2, 9))) for _ in range(3000)]
    index = {}
    ids = []
    for _ in range(60_000):
        w = words[int(rnd.random() ** 3 * len(words))]
        w = w.lower() if cfg["lower"] == "yes" else w
        ids.append(index.setdefault(w, len(index)) % vocab)
    n = len(ids) // size
    return torch.tensor(ids[:n * size]).view(n, size)


def load_corpus(cfg, rank):
    CACHE.mkdir(exist_ok=True)
    path = CACHE / f"blocks-{fingerprint(cfg)}.pt"
    if rank == 0:
        if not path.exists():
            print("tokenising ...", flush=True)
            blocks = tokenise(cfg)
            tmp = path.with_suffix(".tmp")
            torch.save(blocks, tmp)
            tmp.rename(path)
    else:
        while not path.exists():
            time.sleep(0.5)
    return torch.load(path)
