import math
import random


class Cart:
    """A cart on a rail; an episode ends when the cart leaves it."""

    def __init__(self, seed, spread):
        self.rng, self.spread = random.Random(seed), spread

    def reset(self):
        self.x, self.v, self.t = self.rng.gauss(0, self.spread), 0.0, 0
        return [self.x, self.v]

    @property
    def out(self):
        return abs(self.x) > 1 or self.t >= 60

    def step(self, push):
        self.v += 0.05 * (1 if push else -1) + 0.01 * math.sin(self.t)
        self.x += 0.1 * self.v
        self.t += 1
        return [self.x, self.v], 1.0 - self.x * self.x
