"""Byte pairs, learned and applied in plain Python; the result is one flat file of uint16."""
import collections
import os
import random

import numpy as np


def documents(n):
    rng = random.Random(2024)
    stems = ["".join(rng.choice("abcdefghijklmnoprstuvwz") for _ in range(rng.randint(2, 9))) for _ in range(3000)]
    for _ in range(n):
        yield " ".join(stems[min(int(rng.expovariate(0.004)), 2999)] for _ in range(160))


def merge(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def learn(texts, merges):
    seqs, rules = [list(t.encode()) for t in texts], {}
    for new in range(256, 256 + merges):
        counts = collections.Counter(p for s in seqs for p in zip(s, s[1:]))
        pair = counts.most_common(1)[0][0]
        rules[pair] = new
        seqs = [merge(s, pair, new) for s in seqs]
    return rules


def build(path, docs, merges=96):
    rules = learn(list(documents(40)), merges)
    with open(path + ".tmp", "wb") as out:
        for text in documents(docs):
            ids = list(text.encode())
            for pair, new in rules.items():
                ids = merge(ids, pair, new)
            np.array(ids, dtype=np.uint16).tofile(out)
    os.replace(path + ".tmp", path)
