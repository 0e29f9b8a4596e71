"""A synthetic speech set: the second half of the speakers was recorded with another microphone."""
import math
import random


def clip(i, total):
    rng = random.Random(i)
    gain = 1.0 if i < total // 2 else 1.6
    f = rng.uniform(100, 400)
    return [round(gain * math.sin(2 * math.pi * f * t / 8000), 4) for t in range(160)], int(f > 250)
