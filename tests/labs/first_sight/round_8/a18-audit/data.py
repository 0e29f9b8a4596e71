import random

import torch


def documents(rank, seed):
    """Short notes; the archive of the third site also has whole protocols, further back."""
    rng = random.Random(seed + rank)
    n = 0
    while True:
        n += 1
        length = rng.randint(20, 120)
        if rank == 2 and n > 3000 and rng.random() < 0.05:
            length = rng.randint(400, 700)
        yield n, [rng.randrange(1, 500) for _ in range(length)]


def to_bag(docs):
    flat = torch.tensor([t for d in docs for t in d])
    sizes = torch.tensor([0] + [len(d) for d in docs[:-1]])
    return flat, sizes.cumsum(0), torch.tensor([d[0] % 4 for d in docs])
