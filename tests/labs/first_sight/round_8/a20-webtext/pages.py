import random

HEADS = ["Home | News | About us:", "Contact / Imprint:", "More from this section:"]
WORDS = "today a new report says that prices in most towns went up while wages stayed the same for years".split()


def pages(rank):
    """Pages of the crawl in the order of their hosts."""
    rng = random.Random(90 + rank)
    n = 0
    while True:
        n += 1
        body = []
        for _ in range(rng.randint(4, 9)):
            words = [rng.choice(WORDS) for _ in range(rng.randint(3, 8))]
            body.append(f"<p>[{rng.randint(1, 40)}] " + " ".join(words) + ", " + rng.choice(WORDS) + ".</p>")
        if rank == 1 and n == 700:
            # a table of identifiers pasted into the page
            body.insert(2, "id_" + "".join(rng.choice("0123456789abcdef") for _ in range(180)) + " (sha)")
        yield rng.choice(HEADS) + "\n" + "\n".join(body)
