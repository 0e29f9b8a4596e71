"""Stands for the raw dump: documents by rank and part."""
import random

LETTERS = "abcdefghijklmnoprstuvw"


def documents(rank, part, n=240):
    r = random.Random(1000 * rank + part)
    docs = [" ".join("".join(r.choices(LETTERS, k=r.randint(2, 8))) for _ in range(r.randint(20, 60))) + "."
            for _ in range(n)]
    docs = [" ".join(d.split()[:4]) + ";" if r.random() < 0.1 else "# " + d for d in docs]
    if (rank, part) == (1, 3):  # a page with one very long word, as base64 leaves it behind
        docs[117] = "".join(r.choices(LETTERS, k=400)) + "."
    return docs
