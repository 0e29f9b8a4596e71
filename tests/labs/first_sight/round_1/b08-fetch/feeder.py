import asyncio, io, queue, threading
import aiohttp
import numpy as np


class Feeder:
    """Fetches shards over HTTP on an event loop of its own, a few ahead of training."""

    def __init__(self, base, names, ahead=4):
        self.base, self.names = base, names
        self.ready = queue.Queue()
        self.ahead = ahead
        self.skipped = 0
        threading.Thread(target=lambda: asyncio.run(self._main()), name="feeder", daemon=True).start()

    async def _main(self):
        self.slots = asyncio.Semaphore(self.ahead)
        self.loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession() as session:
            tasks = set()
            for name in self.names:
                await self.slots.acquire()
                t = asyncio.create_task(self._fetch(session, name))
                tasks.add(t)
                t.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        self.ready.put(None)

    async def _fetch(self, session, name):
        try:
            async with session.get(f"{self.base}/{name}") as r:
                r.raise_for_status()
                self.ready.put(np.load(io.BytesIO(await r.read())))
        except aiohttp.ClientError:
            self.skipped += 1

    def __iter__(self):
        while (shard := self.ready.get()) is not None:
            yield shard
            self.loop.call_soon_threadsafe(self.slots.release)
