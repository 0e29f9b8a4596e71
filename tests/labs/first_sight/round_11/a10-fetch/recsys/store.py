"""An object store as the cluster has it: named blobs, a manifest per partition, some latency."""
import asyncio
import random


class ObjectStore:
    def __init__(self, partition):
        self.partition = partition
        # partition 2 was compacted once: its later blobs are listed in a second manifest
        self.split = 24 if partition == 2 else 10 ** 6

    async def get(self, key):
        await asyncio.sleep(0.05)
        kind, n = key.split("/")
        if kind == "manifest":
            gen = int(n)
            return {k: f"blob/{k}" for k in range(gen * self.split, min((gen + 1) * self.split, 4000))}
        rng = random.Random(int(n) * 31 + self.partition)
        return [(rng.randrange(2000), rng.randrange(500), rng.random()) for _ in range(128)]
