import torch
from torch import nn

VOCAB, DIM, EOS = 24, 32, 0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.GRU(DIM, DIM, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, h):
        h = h + self.mix(h)[0]
        return h + self.mlp(h)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        h = self.emb(ids)
        for b in self.blocks:
            h = b(h)
        return self.out(h)


@torch.no_grad()
def sample(policy, prompts, least, most):
    ids = prompts
    done = torch.zeros(len(ids), dtype=torch.bool)
    for n in range(most):
        logits = policy(ids)[:, -1]
        if n < least:
            logits[:, EOS] = -torch.inf
        nxt = torch.multinomial(logits.softmax(-1), 1)
        ids = torch.cat([ids, nxt], 1)
        done |= nxt[:, 0] == EOS
        if done.all():
            break
    return ids
