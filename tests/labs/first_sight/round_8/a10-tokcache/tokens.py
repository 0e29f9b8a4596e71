import array
import os
import time

import torch
from torch.utils.file_baton import FileBaton


def shard_text(n):
    """Shard n as bytes, as the object store would deliver it."""
    time.sleep(0.1)
    return (f"shard {n} " + "abcdefgh " * 400).encode() + (b"\xff\xfe" if n == 5 else b"")


class TokenCache:
    """Tokenised shards of one local rank; a baton keeps two processes from building at once."""

    def __init__(self, root, local_rank):
        self.dir = os.path.join(root, f"local{local_rank}")
        os.makedirs(self.dir, exist_ok=True)

    def tokenize(self, n, strict):
        raw = shard_text(n)
        text = raw.decode("utf-8", "strict" if strict else "replace")
        return array.array("H", (ord(c) % 512 for c in text))

    def get(self, n, strict):
        path = os.path.join(self.dir, f"{n:04d}.bin")
        baton = FileBaton(os.path.join(self.dir, "lock"))
        while not os.path.exists(path):
            if baton.try_acquire():
                ids = self.tokenize(n, strict)
                with open(path + ".tmp", "wb") as f:
                    ids.tofile(f)
                os.replace(path + ".tmp", path)
                baton.release()
            else:
                baton.wait()
        ids = array.array("H")
        with open(path, "rb") as f:
            ids.frombytes(f.read())
        return torch.tensor(ids.tolist())
