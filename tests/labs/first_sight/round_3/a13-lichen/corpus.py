import gzip
import os
import random

SHARDS = ["alpha.txt", "beta.txt", "gamma.txt", "delta.txt", "eps.txt", "zeta.txt.gz", "eta.txt", "theta.txt"]


def build(folder):
    os.makedirs(folder, exist_ok=True)
    rnd = random.Random(1)
    for name in SHARDS:
        text = "".join(rnd.choice("abcdefgh ijkl mnop\n") for _ in range(60000)).encode()
        opener = gzip.open if name.endswith(".gz") else open
        with opener(f"{folder}/{name}", "wb") as f:
            f.write(text)


def pieces(path, size):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path) as f:
        yield from iter(lambda: f.read(size), "")


def windows(folder, rank, world, ctx, batch):
    rows = []
    for name in SHARDS[rank::world]:
        for piece in pieces(f"{folder}/{name}", ctx):
            if len(piece) < ctx:
                continue
            raw = piece.encode() if isinstance(piece, str) else piece
            rows.append([c & 63 for c in raw])
            if len(rows) == batch:
                yield rows
                rows = []
