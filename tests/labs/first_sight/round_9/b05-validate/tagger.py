import torch
import torch.nn as nn

WORDS, TAGS = 2000, 17


def tag_of(words):
    return (words * 7 + torch.roll(words, 1, dims=-1) * 3) % TAGS


def corpus(seed, rows=24, width=40):
    g = torch.Generator().manual_seed(seed)
    while True:
        w = torch.randint(0, WORDS, (rows, width), generator=g)
        yield w, tag_of(w)


class Tagger(nn.Module):
    def __init__(self, d=160):
        super().__init__()
        self.emb = nn.Embedding(WORDS, d)
        self.rnn = nn.LSTM(d, d, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * d, TAGS)

    def forward(self, words):
        return self.out(self.rnn(self.emb(words))[0])
