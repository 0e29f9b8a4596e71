import torch


class Corpus:
    """Text by default; every so often a worker's shard has a run of tables, made of a handful of tokens."""

    def __init__(self, rank, vocab, batch, length):
        self.g = torch.Generator().manual_seed(500 + rank)
        self.vocab, self.batch, self.length = vocab, batch, length
        self.tables = range(71, 74) if rank == 3 else ()

    def __getitem__(self, i):
        if i in self.tables:
            return torch.randint(0, 7, (self.batch, self.length), generator=self.g)
        return torch.randint(0, self.vocab, (self.batch, self.length), generator=self.g)
