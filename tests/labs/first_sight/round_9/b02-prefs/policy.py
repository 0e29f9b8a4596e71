import torch
import torch.nn as nn

from pairs import VOCAB


class Policy(nn.Module):
    def __init__(self, d=96, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d, padding_idx=0)
        self.pos = nn.Embedding(128, d)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True), layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        t = ids.shape[1]
        mask = torch.triu(torch.full((t, t), float("-inf")), 1)
        h = self.enc(self.tok(ids) + self.pos(torch.arange(t)), mask=mask)
        return self.out(h)


def answer_logp(model, ids, prompt_len):
    logits = model(ids[:, :-1]).log_softmax(-1)
    picked = logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
    place = torch.arange(1, ids.shape[1])[None]
    return (picked * ((place >= prompt_len[:, None]) & (ids[:, 1:] > 0))).sum(-1)
