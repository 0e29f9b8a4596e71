"""Reads JSONL shards in an event loop of its own, so that the trainer never waits for the disk."""
import asyncio
import json
import threading
import zlib

import torch


class AsyncRows:
    def __init__(self, path, batch_size, ahead=4, features=64):
        self.path, self.batch_size, self.features = path, batch_size, features
        self.loop = asyncio.new_event_loop()
        self.queue = asyncio.Queue(maxsize=ahead)
        self.thread = threading.Thread(target=self._serve, name="rows", daemon=True)
        self.thread.start()
        self.filler = asyncio.run_coroutine_threadsafe(self._fill(), self.loop)

    def _serve(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _lines(self):
        while True:
            with open(self.path, encoding="utf-8") as f:
                for line in f:
                    yield line
                    await asyncio.sleep(0)

    def _encode(self, row):
        vec = torch.zeros(self.features)
        for word in row["text"].split():
            vec[zlib.crc32(word.encode()) % self.features] += 1.0
        return vec, row["label"]

    async def _fill(self):
        xs, ys = [], []
        async for line in self._lines():
            x, y = self._encode(json.loads(line))
            xs.append(x)
            ys.append(y)
            if len(xs) == self.batch_size:
                await self.queue.put((torch.stack(xs), torch.tensor(ys)))
                xs, ys = [], []

    def __iter__(self):
        return self

    def __next__(self):
        return asyncio.run_coroutine_threadsafe(self.queue.get(), self.loop).result()
