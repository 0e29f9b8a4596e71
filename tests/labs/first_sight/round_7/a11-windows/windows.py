"""Windows of a long signal, decoded once into a file that all ranks of the machine map."""
import os

import numpy as np
import torch
import torch.distributed as dist


class Window:
    def __init__(self, folder, number, length=4096, channels=8):
        self.path = os.path.join(folder, f"window{number}.f32")
        self.number = number
        if dist.get_rank() == 0:
            t = np.arange(length)[:, None] * (1 + np.arange(channels))[None] / 200
            rng = np.random.default_rng(number)
            signal = np.sin(t + number) + 0.1 * rng.standard_normal((length, channels))
            signal.astype(np.float32).tofile(self.path)
        dist.barrier()
        self.data = np.memmap(self.path, np.float32, "r", shape=(length, channels))

    def batch(self, n, length, gen):
        at = torch.randint(0, len(self.data) - length - 1, (n,), generator=gen).tolist()
        rows = torch.stack([torch.from_numpy(np.array(self.data[i:i + length + 1])) for i in at])
        return rows[:, :-1], rows[:, 1:]

    def close(self):
        if self.data is None:
            return
        self.data = None
        dist.barrier()
        if dist.get_rank() == 0:
            os.unlink(self.path)

    def __del__(self):
        self.close()
