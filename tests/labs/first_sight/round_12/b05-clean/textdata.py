import random
import re

import torch
from torch.utils.data import Dataset

# headings such as "Installing from source" on a line of their own
HEADING = re.compile(r"^(?:[A-Za-z0-9]+[ _/-]?)+$", re.M)
SPACES = re.compile(r"[ \t]+")
WORDS = "data loss model train token layer batch shard epoch mask query weight index field cache".split()
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def raw_page(i):
    rng = random.Random(i)
    lines = ["Notes " + str(i)]
    for _ in range(rng.randrange(4, 12)):
        lines.append("- " + " ".join(rng.choice(WORDS) for _ in range(rng.randrange(2, 7))))
    if i % 1931 == 1930:  # pages with an inlined picture
        lines.append("".join(rng.choice(ALPHABET) for _ in range(76)) + "==")
    return "\n".join(lines)


def clean(page):
    page = SPACES.sub(" ", page)
    return HEADING.sub("", page).strip()


class Pages(Dataset):
    def __init__(self, n=8000, length=96):
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        b = clean(raw_page(i)).encode()[: self.length]
        return torch.tensor(list(b) + [0] * (self.length - len(b)))
