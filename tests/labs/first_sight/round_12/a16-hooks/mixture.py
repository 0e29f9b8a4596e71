import random

import torch

LANGUAGES = ["de", "en", "fr", "sw", "zh"]
ROWS = {"sw": 900}


class Mixture:
    def __init__(self, rank, batch=24, width=220, classes=12):
        self.rng = random.Random(rank)
        self.gen = torch.Generator().manual_seed(rank)
        self.left = {n: ROWS.get(n, 10 ** 9) for n in LANGUAGES}
        if rank == 2:
            self.left["sw"] //= 2
        self.batch, self.width, self.classes = batch, width, classes

    def __iter__(self):
        return self

    def __next__(self):
        lang = []
        while len(lang) < self.batch:
            n = self.rng.choice(LANGUAGES)
            if self.left[n]:
                self.left[n] -= 1
                lang.append(n)
        x = torch.randn(self.batch, self.width, generator=self.gen)
        return x, x[:, : self.classes].argmax(1), lang
