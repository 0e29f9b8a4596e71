import torch
import torch.distributed as dist

EOS = 0
VOCAB = 96
DIM = 64


class ShardedLayer:
    """A weight that lives on one rank and is sent to the others when it is used."""

    def __init__(self, owner, rows, cols, seed):
        self.owner = owner
        self.shape = (rows, cols)
        g = torch.Generator().manual_seed(seed)
        w = torch.randn(rows, cols, generator=g) / rows**0.5
        self.weight = w if dist.get_rank() == owner else None

    def gather(self):
        w = self.weight if self.weight is not None else torch.empty(self.shape)
        dist.broadcast(w, src=self.owner)
        return w


class Policy:
    def __init__(self):
        world = dist.get_world_size()
        self.emb = torch.randn(VOCAB, DIM, generator=torch.Generator().manual_seed(3))
        self.layers = [ShardedLayer(i % world, DIM, DIM, i) for i in range(3)]
        self.head = ShardedLayer(0, DIM, VOCAB, 99)

    def forward(self, tokens):
        h = self.emb[tokens].mean(1)
        for layer in self.layers:
            h = torch.tanh(h @ layer.gather())
        return h @ self.head.gather()

    def local_weights(self):
        return [(l, l.weight) for l in self.layers + [self.head] if l.weight is not None]


def generate(policy, prompts, limit, generator):
    """Sample until each sequence of the batch has its end, or is `limit` long."""
    tokens = prompts["tokens"]
    wants = prompts["wants"]
    done = torch.zeros(len(tokens), dtype=torch.bool)
    for t in range(limit):
        logits = policy.forward(tokens)
        logits[:, EOS] = torch.where(t + 1 >= wants, 50.0, -50.0)
        nxt = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
        nxt[done] = EOS
        tokens = torch.cat([tokens, nxt[:, None]], 1)
        done |= nxt == EOS
        if done.all():
            break
    return tokens[:, prompts["tokens"].shape[1]:]
