import os

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import corpus


def open_tokens(scratch):
    """The first rank of each node tokenises; its neighbours on the node wait for it."""
    path = os.path.join(scratch, "tokens.npy")
    if not os.path.exists(path):
        if int(os.environ["LOCAL_RANK"]) == 0:
            print(f"tokenising into {scratch}", flush=True)
            corpus.build(scratch)
        dist.barrier()
    return np.load(path, mmap_mode="r")


class Windows(Dataset):
    def __init__(self, tokens, seq):
        self.tokens, self.seq = tokens, seq

    def __len__(self):
        return (len(self.tokens) - 1) // self.seq

    def __getitem__(self, i):
        a = i * self.seq
        chunk = self.tokens[a:a + self.seq + 1].astype("int64")
        return torch.from_numpy(chunk)
