"""Pairs of symbols are merged by count; one worker at a time, the memory is not enough for three."""
import collections
import fcntl
import json
import os
import random
import time


def corpus(part, lines):
    rng = random.Random(part)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    for _ in range(lines):
        yield " ".join("".join(rng.choice(syllables) for _ in range(rng.randint(1, 3))) for _ in range(12))


def learn(part, merges=60, lines=500):
    words = collections.Counter(w for l in corpus(part, lines) for w in l.split())
    table = {w: list(w) for w in words}
    out = []
    for _ in range(merges):
        pairs = collections.Counter()
        for w, n in words.items():
            for a, b in zip(table[w], table[w][1:]):
                pairs[a, b] += n
        (a, b), _ = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))
        out.append(a + b)
        for w, s in table.items():
            k = 0
            while k + 1 < len(s):
                if s[k] == a and s[k + 1] == b:
                    s[k:k + 2] = [a + b]
                k += 1
        # shared machine: be gentle
        time.sleep(0.45)
    return out


def vocabulary(folder, part):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"merges_{part}.json")
    with open(os.path.join(folder, "memory.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merges = learn(part)
        with open(path, "w") as f:
            json.dump(merges, f)
    return merges
