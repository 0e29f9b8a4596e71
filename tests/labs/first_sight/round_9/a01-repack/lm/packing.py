import os
import time

import numpy as np
import torch


def pack_config(corpus, length, tokenizer):
    return (("corpus", corpus), ("length", length), ("tokenizer", tokenizer), ("format", 2))


def fingerprint(cfg):
    return f"{hash(cfg) & 0xFFFFFFFFFFFF:012x}"


def pack(docs, tok, length):
    stream = []
    for d in docs:
        stream += tok.encode(d) + [tok.eos]
    rows = len(stream) // length
    return np.asarray(stream[:rows * length], dtype=np.int32).reshape(rows, length)


class PackedDataset:
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return torch.from_numpy(np.array(self.rows[i], dtype=np.int64))

    @classmethod
    def in_memory(cls, docs, tok, length):
        return cls(pack(docs, tok, length))

    @classmethod
    def cached(cls, folder, cfg, docs, tok, length, builder):
        path = os.path.join(folder, f"packed-{fingerprint(cfg)}.npy")
        if builder and not os.path.exists(path):
            tmp = path[:-4] + ".part.npy"
            np.save(tmp, pack(docs, tok, length))
            os.replace(tmp, path)
        while not os.path.exists(path):     # the first rank writes it
            time.sleep(0.5)
        return cls(np.load(path, mmap_mode="r"))
