import torch
import torch.nn as nn
import torch.nn.functional as F


class Tagger(nn.Module):
    def __init__(self, vocab=300, width=64, tags=9, langs=6):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.tag = nn.Linear(width, tags)
        self.lang = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, langs))

    def forward(self, x, tags, langs):
        h = self.lstm(self.emb(x))[0]
        loss = F.cross_entropy(self.tag(h).flatten(0, 1), tags.flatten())
        known = langs >= 0
        if known.any():
            loss = loss + 0.2 * F.cross_entropy(self.lang(h.mean(1)[known]), langs[known])
        return loss
