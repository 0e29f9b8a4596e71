import csv
from collections import defaultdict
from itertools import cycle

import torch
import torch.distributed as dist

from tagger import tag_of


class Scorer:
    """Accuracy on one language of the held-out set at a time, in turn."""

    def __init__(self, path, rank, world):
        by_language = defaultdict(list)
        with open(path) as f:
            for language, text in csv.reader(f, delimiter="\t"):
                by_language[language].append(torch.tensor([int(w) for w in text.split()]))
        self.mine = {k: v[rank::world] for k, v in by_language.items()}
        self.turn = cycle(sorted(by_language))
        self.pg = dist.new_group()

    @torch.no_grad()
    def next(self, model):
        language = next(self.turn)
        docs = self.mine[language]
        if not docs:
            return language, None
        model.eval()
        right = total = 0
        for words in docs:
            guess = model(words[None]).argmax(-1)[0]
            right += int((guess == tag_of(words[None])[0]).sum())
            total += len(words)
        model.train()
        counts = torch.tensor([right, total], dtype=torch.float64)
        dist.all_reduce(counts, group=self.pg)
        return language, (counts[0] / counts[1]).item()
