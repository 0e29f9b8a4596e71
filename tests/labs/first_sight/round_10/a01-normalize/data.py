import os
import subprocess
import sys

import torch
from torch.utils.data import IterableDataset

HERE = os.path.dirname(os.path.abspath(__file__))


class Normaliser:
    """Keeps one textnorm process and talks to it line by line."""

    def __init__(self, lower=True):
        cmd = [sys.executable, os.path.join(HERE, "tools", "textnorm.py")]
        if lower:
            cmd.append("--lower")
        self.proc = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True, bufsize=1, encoding="utf-8")

    def __call__(self, text):
        self.proc.stdin.write(text + "\n")
        self.proc.stdin.flush()
        return self.proc.stdout.readline().rstrip("\n")

    def close(self):
        self.proc.stdin.close()
        self.proc.wait()


class CharLM(IterableDataset):
    def __init__(self, path, seq_len, normaliser):
        self.path = path
        self.seq_len = seq_len
        self.norm = normaliser

    def __iter__(self):
        buf = []
        while True:
            with open(self.path, encoding="utf-8") as fh:
                for row in fh:
                    text = row.rstrip("\n").split("\t", 1)[1]
                    buf.extend(min(ord(c), 255) for c in self.norm(text) + "\n")
                    while len(buf) > self.seq_len:
                        chunk = torch.tensor(buf[: self.seq_len + 1])
                        buf = buf[self.seq_len:]
                        yield chunk[:-1], chunk[1:]
