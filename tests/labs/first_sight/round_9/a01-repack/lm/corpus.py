import random

WORDS = ("the model of a small river is long and its water runs to an old town where people "
         "measure light with glass and write numbers in books that nobody reads again").split()


def documents(n, seed=3):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(20, 120))) for _ in range(n)]


class ByteTokenizer:
    """Bytes, with the most frequent pairs merged."""
    vocab_size = 300

    def __init__(self):
        self.eos = 0
        self.pairs = {b"th": 256, b"er": 257, b"an": 258, b"at": 259, b"e ": 260, b"s ": 261, b"in": 262}

    def encode(self, text):
        raw, out, i = text.encode(), [], 0
        while i < len(raw):
            two = raw[i:i + 2]
            if two in self.pairs:
                out.append(self.pairs[two])
                i += 2
            else:
                out.append(raw[i])
                i += 1
        return out
