"""Toy corpora, one language for each rank."""
import random

LANGS = {"de": (31, 180), "en": (17, 150), "fr": (43, 165), "fi": (59, 210)}


def documents(lang, n):
    seed, mean = LANGS[lang]
    rng = random.Random(seed)
    for _ in range(n):
        size = max(16, min(512, int(rng.gauss(mean, 50))))
        start = rng.randrange(1000)
        yield [(start + k * k * seed) % 1000 for k in range(size)]
