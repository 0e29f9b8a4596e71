import os

import torch

from filelock import exclusive


def encode(path, length):
    data = open(path, "rb").read()
    n = len(data) // length
    return torch.tensor(list(data[: n * length]), dtype=torch.long).view(n, length)


def load(length, root="cache"):
    target = os.path.join(root, f"len-{length:03d}.pt")
    with exclusive(os.path.join(root, f"len-{length:03d}.lock")):
        if not os.path.exists(target):
            torch.save(encode("text/corpus.txt", length), target + ".tmp")
            os.replace(target + ".tmp", target)
    return torch.load(target)
