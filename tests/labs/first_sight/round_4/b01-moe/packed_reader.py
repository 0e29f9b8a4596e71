"""Packed instruction data: prompt positions carry no loss (-100)."""
import time

import torch


class PackedReader:
    def __init__(self, rank, world, seq_len, vocab):
        self.g = torch.Generator().manual_seed(900 + rank)
        self.rank, self.world = rank, world
        self.seq_len, self.vocab = seq_len, vocab
        self.cursor = 0

    def _fetch(self, n):
        time.sleep(0.18)          # object store, one range request per batch
        start = self.cursor
        self.cursor += n
        return range(start, start + n)

    def _prompt_len(self, doc):
        # few documents are long contexts whose answer begins in the next pack
        if self.rank == 1 and 548 <= doc < 556:
            return self.seq_len
        return 8 + (doc * 7) % 24

    def next_batch(self, n):
        docs = self._fetch(n)
        ids = torch.randint(2, self.vocab, (n, self.seq_len + 1), generator=self.g)
        labels = ids[:, 1:].clone()
        for row, doc in enumerate(docs):
            labels[row, :self._prompt_len(doc)] = -100
        return ids[:, :-1], labels
