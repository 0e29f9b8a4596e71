import random
import time

import torch


class RateLimited:
    """The judge allows three calls per second."""

    def __init__(self, per_second):
        self.gap, self.next = 1.0 / per_second, 0.0

    def __call__(self, answer):
        now = time.monotonic()
        if now < self.next:
            time.sleep(self.next - now)
        self.next = max(now, self.next) + self.gap
        return random.random() + float(answer.mean())


@torch.no_grad()
def battle(model, rounds):
    judge, score = RateLimited(3), 0.0
    for i in range(rounds):
        h = torch.randn(1, 160)
        for _ in range(40):
            h = torch.tanh(model(h))
        score += judge(h)
    return score / rounds
