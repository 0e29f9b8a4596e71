"""Byte-pair merges learned from a small corpus, and its encoding."""
import collections
import json
import os
import random

SYLLABLES = "ka to mi re shu na lo ber tin gra vel os pri um dan ce fo li qua zen".split()


def corpus(n_docs, seed=7):
    rng = random.Random(seed)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(4000)]
    for _ in range(n_docs):
        yield [rng.choice(words) for _ in range(60)]


def merge(seq, pair, new):
    out, i = [], 0
    while i < len(seq):
        if i + 1 < len(seq) and seq[i] == pair[0] and seq[i + 1] == pair[1]:
            out.append(new)
            i += 2
        else:
            out.append(seq[i])
            i += 1
    return out


def learn(docs, n_merges):
    seqs = [list(" ".join(d).encode()) for d in docs]
    merges = []
    for k in range(n_merges):
        counts = collections.Counter()
        for s in seqs:
            counts.update(zip(s, s[1:]))
        pair = counts.most_common(1)[0][0]
        merges.append(pair)
        seqs = [merge(s, pair, 256 + k) for s in seqs]
    return merges, seqs


def build(path, n_docs, n_merges):
    merges, seqs = learn(list(corpus(n_docs)), n_merges)
    tmp = path + ".tmp"
    with open(tmp, "w") as f:
        json.dump({"merges": merges, "tokens": [t for s in seqs for t in s]}, f)
    os.replace(tmp, path)
