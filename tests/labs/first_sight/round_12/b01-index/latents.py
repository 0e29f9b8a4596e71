"""Text shards with a length index beside them."""
import json
import os

import torch
import torch.distributed as dist


def shard_lengths(root, cache_dir):
    """[(file, [byte offset of each line])], built once and kept in cache_dir."""
    cached = os.path.join(cache_dir, "offsets.json")
    if os.path.exists(cached):
        with open(cached) as f:
            return json.load(f)
    if dist.get_rank() == 0:
        os.makedirs(cache_dir, exist_ok=True)
        index = []
        for name in sorted(os.listdir(root)):
            offsets, pos = [], 0
            with open(os.path.join(root, name), "rb") as f:
                for line in f:
                    offsets.append(pos)
                    pos += len(line)
            index.append((name, offsets))
        with open(cached + ".tmp", "w") as f:
            json.dump(index, f)
        os.replace(cached + ".tmp", cached)
    dist.barrier()
    return shard_lengths(root, cache_dir)


class Lines(torch.utils.data.Dataset):
    def __init__(self, root, index, width=32):
        self.root, self.width = root, width
        self.where = [(n, o) for n, offs in index for o in offs]
        self.files = {}

    def __len__(self):
        return len(self.where)

    def __getitem__(self, i):
        name, offset = self.where[i]
        if name not in self.files:
            self.files[name] = open(os.path.join(self.root, name), "rb")
        f = self.files[name]
        f.seek(offset)
        ids = [int(t) for t in f.readline().split()][: self.width]
        return torch.tensor(ids + [0] * (self.width - len(ids)))


def probe_set(root, n=400, rounds=60):
    """The lines hardest for a bigram model; they are watched during training."""
    counts = torch.ones(500, 500)
    rows = []
    for name in sorted(os.listdir(root)):
        with open(os.path.join(root, name)) as f:
            for line in f:
                ids = [int(t) for t in line.split()]
                rows.append(torch.tensor(ids))
                counts[rows[-1][:-1], rows[-1][1:]] += 1
    score = torch.zeros(len(rows))
    for _ in range(rounds):
        logp = (counts / counts.sum(1, keepdim=True)).log()
        keep = torch.randperm(len(rows))[:1500]
        for j in keep.tolist():
            r = rows[j]
            score[j] -= logp[r[:-1], r[1:]].mean()
    return [rows[j] for j in score.topk(n).indices.tolist()]
