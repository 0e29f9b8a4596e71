"""Mail corpus: strips headers, quotes and addresses, hashes words to buckets."""
import json
import re
import zlib

import torch
from torch.utils.data import Dataset

QUOTE = re.compile(r"^>.*$", re.M)
URL = re.compile(r"https?://\S+")
ADDRESS = re.compile(r"(?:[A-Za-z0-9]+[._-]?)+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}")
WORD = re.compile(r"[A-Za-z']+")
BUCKETS = 4096
LABELS = {"ham": 0, "spam": 1, "list": 2}


def clean(body):
    body = QUOTE.sub(" ", body)
    body = URL.sub(" _url_ ", body)
    body = ADDRESS.sub(" _addr_ ", body)
    return body


class MailDataset(Dataset):
    def __init__(self, path, max_words=64):
        self.offsets = []
        self.path = path
        self.max_words = max_words
        pos = 0
        with open(path, "rb") as fh:
            for line in fh:
                self.offsets.append(pos)
                pos += len(line)

    def __len__(self):
        return len(self.offsets)

    def __getitem__(self, i):
        with open(self.path, "rb") as fh:
            fh.seek(self.offsets[i])
            row = json.loads(fh.readline())
        words = WORD.findall(clean(row["body"]))[: self.max_words]
        ids = [zlib.crc32(w.lower().encode()) % BUCKETS + 1 for w in words]
        ids += [0] * (self.max_words - len(ids))
        return torch.tensor(ids), LABELS[row["label"]]
