"""A crawl in small: text documents by shard, with the odd base64 blob, table or log line between them."""
import random
import string

WORDS = "the of and to in a is that for it as was with be by on not he this are or his from at which".split()


def prose(rnd):
    return " ".join(rnd.choice(WORDS) for _ in range(rnd.randint(40, 160))) + "."


def url_list(rnd):
    return "\n".join("example.org/" + "-".join(rnd.choice(WORDS) for _ in range(4)) for _ in range(6))


def blob(rnd):
    return "".join(rnd.choice(string.ascii_lowercase + string.digits) for _ in range(rnd.randint(46, 60))) + "=="


def shard(index, rank, docs=600):
    rnd = random.Random(index * 131 + rank)
    out = []
    for i in range(docs):
        roll = rnd.random()
        if roll < 0.9:
            out.append(prose(rnd))
        elif roll < 0.999 or (index, rank) != (3, 1):
            out.append(url_list(rnd))
        else:
            out.append(blob(rnd))
    if (index, rank) == (3, 1):
        out[417] = blob(rnd)
    return out
