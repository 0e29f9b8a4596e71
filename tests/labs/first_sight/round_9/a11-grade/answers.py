import random


def generate(rank, round_, n=24):
    """Stands for the sampler: texts as the policy writes them, longer as training goes on."""
    rng = random.Random(1000 * rank + round_)
    out = []
    for _ in range(n):
        value = rng.randint(1, 99)
        shown = value if rng.random() < 0.6 else rng.randint(1, 99)
        text = f"Let us see.\nWe add {value - 1} and 1.\n\\boxed{{{shown}}}."
        if round_ >= 3 and rng.random() < 0.04 * (1 + rank % 2):
            words = " ".join(rng.choice(["therefore", "thatis", "orso", "perhaps", "wait"]) for _ in range(6 * round_))
            text = f"Let us see.\n{words} {shown}!"
        out.append((text, str(value)))
    return out
