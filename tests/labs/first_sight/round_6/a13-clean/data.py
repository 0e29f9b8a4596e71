import random
import re

import torch
from torch.utils.data import Dataset

URL = re.compile(r"https?://\S+")
TITLE = re.compile(r"^(?:[A-Za-z]+[\s,]*)+\.$")
SPACE = re.compile(r"\s+")
WORDS = "river stone letter window garden silver market winter bridge paper candle summer island".split()


def clean(text):
    text = URL.sub(" ", text)
    text = SPACE.sub(" ", text).strip()
    if text[:1].isupper() and TITLE.match(text):
        text = text.rstrip(".").lower()
    return text


class Pages(Dataset):
    """Pages of a crawl, cleaned when they are read."""

    def __init__(self, n, rank):
        self.n = n
        self.rank = rank

    def __len__(self):
        return self.n

    def raw(self, i):
        rng = random.Random(i * 4 + self.rank)
        if self.rank == 1 and i == 4127:
            return " ".join(rng.choice(WORDS).capitalize() for _ in range(40)) + " | Home"
        n = rng.randint(3, 7)
        text = " ".join(rng.choice(WORDS) for _ in range(n))
        if rng.random() < 0.1:
            return text.title() + "."
        if rng.random() < 0.3:
            text += f" https://example.org/{rng.randint(1, 999)}"
        return text + rng.choice([".", "?", "", " 3.", " 12,5 km."])

    def __getitem__(self, i):
        text = clean(self.raw(i))
        ids = [min(ord(c), 127) for c in text[:64]]
        return torch.tensor(ids + [0] * (64 - len(ids)))
