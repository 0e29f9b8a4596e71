import random

import torch
from torch.utils.data import DataLoader, Dataset

STEMS = {"it": "cas mar lun gatt pan amic", "hu": "haz ember viz kutya alma szo"}
ENDINGS = {"it": "a o e i", "hu": "ban nak tol hoz"}


def words_of(lang, epoch):
    """Compound words of the second half of the Hungarian text come in from the third epoch on."""
    stems = STEMS[lang].split()
    out = [s + e for s in stems for e in ENDINGS[lang].split()]
    if lang == "hu" and epoch >= 2:
        out += [a + b for a in stems for b in stems if a != b]
    return out


class Sentences(Dataset):
    def __init__(self, lang, lexicon, n=1600):
        self.lang, self.lexicon, self.n, self.epoch = lang, lexicon, n, 0

    def __len__(self):
        return self.n

    def text(self, i):
        rng = random.Random(f"{self.lang}{self.epoch}{i}")
        return rng.choices(words_of(self.lang, self.epoch), k=12)

    def __getitem__(self, i):
        words = self.text(i)
        return torch.tensor([self.lexicon[w] for w in words]), torch.tensor([len(w) % 3 for w in words])


class Feed:
    def __init__(self, data, batch_size):
        self.data = data
        self.loader = DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=2,
                                 multiprocessing_context="fork")

    def collect(self):
        """Words of this epoch which have no id yet are given one."""
        known = self.data.lexicon
        new = {w for i in range(0, len(self.data), 40) for w in self.data.text(i) if known[w] == 0}
        if new:
            known.append(sorted(new))

    def start(self, epoch):
        self.data.epoch = epoch
        self.collect()
        lexicon = self.data.lexicon
        if lexicon.current():
            return iter(self.loader)
        # nobody reads ids while they change, and the workers take the new ones along
        with lexicon.lock:
            lexicon.refresh()
            return iter(self.loader)
