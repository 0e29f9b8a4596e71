import torch


class Pairs:
    """Synthetic preferences: the chosen answer continues the prompt's arithmetic, the rejected one does not."""

    def __init__(self, n, vocab=256, prompt=12, answer=20, seed=4):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        stride = torch.randint(1, 7, (n, 1), generator=g)
        seq = (start + stride * torch.arange(prompt + answer)) % vocab
        bad = seq.clone()
        noise = torch.randint(0, vocab, (n, answer), generator=g)
        keep = torch.rand(n, answer, generator=g) < 0.6
        bad[:, prompt:] = torch.where(keep, bad[:, prompt:], noise)
        self.chosen, self.rejected, self.prompt = seq, bad, prompt

    def __len__(self):
        return len(self.chosen)

    def batch(self, idx):
        return self.chosen[idx], self.rejected[idx]
