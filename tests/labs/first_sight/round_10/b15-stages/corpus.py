import torch

from conf import MICRO, MICRO_SIZE, SEQ, VOCAB


class Corpus:
    """Sequences of a fixed seed, so that the last stage has the labels without asking for them."""

    def __init__(self, sequences, seed=8):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(0, VOCAB, (sequences, 1), generator=g)
        stride = torch.randint(1, 5, (sequences, 1), generator=g)
        self.data = (start + stride * torch.arange(SEQ + 1)) % VOCAB

    def epoch(self, n):
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(n))
        for part in order.split(MICRO * MICRO_SIZE):
            yield [self.data[m] for m in part.split(MICRO_SIZE)]

    def batches(self):
        return -(-len(self.data) // (MICRO * MICRO_SIZE))
