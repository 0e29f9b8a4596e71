"""Near-duplicates of a shard of documents, by a pool of processes."""
import difflib
import multiprocessing as mp
import random
import resource

LIMIT = 5  # seconds of CPU per process: a runaway document must not eat the machine


def _limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 1))


def documents(rank, n=60):
    rng = random.Random(rank)
    alphabet = "abcdefghij klmnop qrstuv wxyz "
    docs = []
    for i in range(n):
        size = 300
        if rank == 1 and i == 41:
            size = 60000
        docs.append("".join(rng.choice(alphabet) for _ in range(size)))
    return docs


def _similar(pair):
    a, b = pair
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() > 0.8


def deduplicate(rank, workers=2):
    docs = documents(rank)
    pairs = [(d, d[::-1]) for d in docs]
    with mp.get_context("fork").Pool(workers, initializer=_limits) as pool:
        drop = pool.map(_similar, pairs, chunksize=4)
    return [d for d, out in zip(docs, drop) if not out]
