import torch
from torch import nn


class Seq2Seq(nn.Module):
    def __init__(self, vocab=800, dim=160):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.enc = nn.GRU(dim, dim, batch_first=True)
        self.dec = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def encode(self, src):
        return self.enc(self.emb(src))[1]

    def step(self, enc, toks):
        return self.out(self.dec(self.emb(toks), enc)[0][:, -1])

    def forward(self, src, tgt):
        return self.out(self.dec(self.emb(tgt), self.encode(src))[0])
