import torch
import torch.nn as nn


class Seq2Seq(nn.Module):
    """GRU encoder/decoder that learns to reverse and shift digit strings."""

    def __init__(self, vocab=14, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.enc = nn.GRU(dim, dim, batch_first=True)
        self.dec = nn.GRU(dim, dim, batch_first=True)
        self.att = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.out = nn.Linear(2 * dim, vocab)

    def decode(self, mem, hidden, tokens):
        h, hidden = self.dec(self.emb(tokens), hidden)
        ctx, _ = self.att(h, mem, mem, need_weights=False)
        return self.out(torch.cat([h, ctx], -1)), hidden

    def forward(self, src, tgt):
        mem, hidden = self.enc(self.emb(src))
        return self.decode(mem, hidden, tgt)[0]


@torch.no_grad()
def beam_search(model, src, width, length, bos):
    """One source at a time, the way the reference implementation scores."""
    mem, hidden = model.enc(model.emb(src[None]))
    beams = [(0.0, [bos], hidden)]
    for _ in range(length):
        grown = []
        for score, toks, h in beams:
            logits, h2 = model.decode(mem, h, torch.tensor([[toks[-1]]]))
            logp = logits[0, -1].log_softmax(-1)
            top = logp.topk(width)
            grown += [(score + v.item(), toks + [i.item()], h2) for v, i in zip(*top)]
        beams = sorted(grown, key=lambda b: -b[0])[:width]
    return beams[0][1][1:]
