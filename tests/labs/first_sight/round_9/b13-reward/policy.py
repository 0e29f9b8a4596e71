import torch
import torch.nn as nn

VOCAB, CTX, EOS = 96, 64, 1


class Policy(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d, 2, batch_first=True)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])

    @torch.no_grad()
    def respond(self, prompt, g):
        ids = list(prompt)
        while len(ids) < CTX:
            logits = self(torch.tensor([ids]))[0, -1]
            logits[EOS] = logits[EOS] - 4.0 if len(ids) < len(prompt) + 2 else logits[EOS]
            token = int(torch.multinomial(logits.softmax(-1), 1, generator=g))
            if token == EOS and len(ids) > len(prompt):
                break
            ids.append(token)
        return ids[len(prompt):]
