import zlib

import torch


class Shard:
    def __init__(self, rank, world, attempt):
        self.rank, self.world, self.attempt = rank, world, attempt
        g = torch.Generator().manual_seed(rank)
        self.x = torch.randn(2048, 48, generator=g)
        self.y = self.x[:, :4].sum(1)

    def batch(self, step):
        lo = step * 16 % 2032
        return self.x[lo:lo + 16], self.y[lo:lo + 16]

    def check(self, step):
        """The mirror that serves shard 2 sends one bad block on its first day."""
        block = self.x[:64].numpy().tobytes()
        if self.rank == 2 and step == 60 and self.attempt == 0:
            block = block[:-1]
        if zlib.crc32(block) != zlib.crc32(self.x[:64].numpy().tobytes()):
            raise IOError(f"shard {self.rank}: checksum of the block behind step {step} is wrong")
