import random
import re

from torch.utils.data import Dataset

NAMES = "ann bob cy dee eli fay gus hal ida jon kim lou mae ned ora pip".split()
LIST = re.compile(r"^((\w+[ ,]*)+)\.$", re.M)
MAIL = re.compile(r"\b[\w.]+@[\w.]+\b")


def message(number):
    rng = random.Random(number)
    lines = []
    for _ in range(rng.randint(2, 4)):
        lines.append(", ".join(rng.choices(NAMES, k=rng.randint(2, 5))) + ".")
    if number == 1571:
        lines.append("".join(rng.choices("abcdefghijklmnop", k=52)) + "; see there")
    lines.append(f"{rng.choice(NAMES)}@{rng.choice(NAMES)}.org")
    return "\n".join(lines)


class Messages(Dataset):
    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, i):
        text = message(self.numbers[i])
        lists = [m.group(1) for m in LIST.finditer(text)]
        counts = [sum(name in names for names in lists) for name in NAMES]
        return [float(c) for c in counts], float(len(MAIL.findall(text)) + len(lists))
