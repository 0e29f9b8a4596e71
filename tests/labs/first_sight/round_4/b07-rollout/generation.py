"""Schema-guided decoding for the on-policy part of the loss."""
import torch

EOS = 2


class SchemaMask:
    """EOS is allowed as soon as all required keys of the schema have been written."""

    def __init__(self, required, suppress, vocab, batch):
        self.required = torch.tensor(required)
        self.seen = torch.zeros(batch, len(required), dtype=torch.bool)
        self.block = torch.zeros(vocab, dtype=torch.bool)
        self.block[torch.tensor(suppress)] = True

    def apply(self, logits):
        logits = logits.masked_fill(self.block, float("-inf"))
        open_ = ~self.seen.all(1)
        logits[open_, EOS] = float("-inf")
        return logits

    def update(self, tokens):
        self.seen |= tokens[:, None] == self.required[None, :]


@torch.no_grad()
def generate(model, prompt, mask, temperature):
    state, out = None, []
    tok = prompt
    finished = torch.zeros(prompt.size(0), dtype=torch.bool)
    while not bool(finished.all()):
        logits, state = model(tok, state)
        logits = mask.apply(logits[:, -1] / temperature)
        nxt = torch.multinomial(logits.softmax(-1), 1)
        mask.update(nxt[:, 0])
        finished |= nxt[:, 0] == EOS
        out.append(nxt.to(torch.int16))
        tok = nxt
    return torch.cat(out, 1)
