import torch
import torch.nn as nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self, vocab=256, dim=96):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 192, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        m = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.body(self.tok(ids), mask=m, is_causal=True))


def answer_logp(model, ids, prompt):
    lp = F.log_softmax(model(ids)[:, prompt - 1:-1], -1)
    return lp.gather(-1, ids[:, prompt:, None]).squeeze(-1).sum(-1)
