"""Write a state dict as several files, big tensors in pieces."""
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor

import torch

PIECE = 512 * 1024


class ShardWriter:
    def __init__(self, root, workers=2):
        self.root = root
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="shards")

    def _put(self, name, data):
        path = os.path.join(self.root, name)
        with open(path + ".tmp", "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".tmp", path)
        return name

    def _tensor(self, folder, key, tensor):
        buf = io.BytesIO()
        torch.save(tensor, buf)
        data = buf.getvalue()
        name = f"{folder}/{key}"
        if len(data) <= PIECE:
            return [self._put(name, data)]
        parts = [self.pool.submit(self._put, f"{name}.{i // PIECE}", data[i:i + PIECE])
                 for i in range(0, len(data), PIECE)]
        return [p.result() for p in parts]

    def save(self, folder, tensors):
        os.makedirs(os.path.join(self.root, folder), exist_ok=True)
        jobs = {k: self.pool.submit(self._tensor, folder, k, v) for k, v in tensors.items()}
        index = {k: j.result() for k, j in jobs.items()}
        self._put(f"{folder}/index.json", json.dumps(index).encode())
