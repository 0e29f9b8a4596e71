import logging
import multiprocessing
import random
import resource

log = logging.getLogger("prepare")
SECONDS = 2  # a page should not take longer


def setup():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 4))


def shingles(words, k=4):
    return {hash(tuple(words[i:i + k])) & 0xFFFFFFFF for i in range(len(words) - k + 1)}


def signature(page):
    number, seed = page
    rng = random.Random(seed)
    words = [rng.randrange(5000) for _ in range(400)]
    grams = shingles(words)
    return number, [min((g * a + b) % 4294967311 for g in grams)
                    for a, b in ((rng.randrange(1, 1 << 31), rng.randrange(1 << 31)) for _ in range(48))]


def signatures(count, workers=2):
    pages = [(i, 1000 + i) for i in range(count)]
    log.info("signing %d pages with %d processes", count, workers)
    with multiprocessing.get_context("fork").Pool(workers, initializer=setup) as pool:
        done = pool.map(signature, pages, chunksize=40)
    log.info("%d signatures", len(done))
    return dict(done)
