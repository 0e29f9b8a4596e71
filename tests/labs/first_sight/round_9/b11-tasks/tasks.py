import torch

SPEC = {"nli": 3, "qa": 2, "sts": 5, "ner": 9, "pos": 17, "topic": 20, "lang": 12}


def batch(name, rows, g):
    x = torch.randn(rows, 24, 64, generator=g)
    k = SPEC[name]
    y = (x[:, :, sum(map(ord, name)) % 64].mean(1) * 40).long().abs() % k
    return x, y


class Mix:
    """Tasks whose validation score still moves stay in the mix."""

    def __init__(self):
        self.score = {}
        self.active = set(SPEC)

    def record(self, name, value):
        if name in self.score and abs(self.score[name] - value) < 1e-4:
            self.active.discard(name)
        self.score[name] = value
