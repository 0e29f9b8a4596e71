import numpy as np
import torch


class Dialogues:
    """Chat turns; the loss is on the assistant's tokens only, so the rest is dropped from the batch."""

    def __init__(self, rank, seed=17, vocab=800, batch=6, length=96):
        self.rng = np.random.default_rng(seed + rank)
        self.rank, self.vocab, self.batch, self.length = rank, vocab, batch, length
        # average share of the prompt in a dialogue; customer-support logs have long prompts
        self.prompt_share = [0.35, 0.5, 0.8][rank % 3]

    def __iter__(self):
        step = 0
        while True:
            ids = self.rng.integers(0, self.vocab, (self.batch, self.length))
            drift = min(0.3, step * 0.004) if self.prompt_share > 0.7 else 0.0
            starts = (self.length * (self.prompt_share + drift + self.rng.uniform(-0.05, 0.05, self.batch))).astype(int)
            mask = np.arange(self.length)[None, :] >= starts[:, None]
            yield torch.from_numpy(ids[mask]), step
            step += 1
