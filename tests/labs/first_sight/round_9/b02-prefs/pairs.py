import random

import torch

VOCAB = 512


def synth_pairs(n, seed):
    rng = random.Random(seed)
    out = []
    for i in range(n):
        topic = rng.randrange(8)
        def text(k):
            return [min(VOCAB - 1, max(1, int(rng.gauss(60 * topic + 30, 25)))) for _ in range(k)]
        out.append({"id": i, "prompt": text(rng.randint(8, 40)), "chosen": text(rng.randint(6, 56)),
                    "rejected": text(rng.randint(6, 56))})
    return out


def keep(rows, max_len):
    return [r for r in rows if len(r["prompt"]) + max(len(r["chosen"]), len(r["rejected"])) <= max_len]


def pad(seqs):
    width = max(map(len, seqs))
    return torch.tensor([s + [0] * (width - len(s)) for s in seqs])


def batches(rows, size, seed):
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    for lo in range(0, len(order) - size + 1, size):
        part = [rows[j] for j in order[lo:lo + size]]
        yield {"chosen": pad([r["prompt"] + r["chosen"] for r in part]),
               "rejected": pad([r["prompt"] + r["rejected"] for r in part]),
               "prompt_len": torch.tensor([len(r["prompt"]) for r in part]),
               "ids": [r["id"] for r in part]}
