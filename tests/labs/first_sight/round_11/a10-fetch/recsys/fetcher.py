import asyncio
import threading

from .store import ObjectStore


class Manifest:
    def __init__(self, read):
        self.read = read
        self.generation = 0
        self.entries = read("manifest/0")

    def locate(self, n):
        while n not in self.entries:
            self.generation += 1
            self.entries.update(self.read(f"manifest/{self.generation}"))
        return self.entries[n]


class Fetcher:
    """Reads ahead on an event loop of its own; the training loop sees plain blocking calls."""

    def __init__(self, partition, ahead=4):
        self.store = ObjectStore(partition)
        self.ahead = ahead
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="fetcher", daemon=True)
        self.thread.start()
        self.manifest = Manifest(self.read)

    def submit(self, coro):
        return asyncio.run_coroutine_threadsafe(coro, self.loop)

    def read(self, key):
        return self.submit(self.store.get(key)).result()

    async def part(self, n):
        return await self.store.get(self.manifest.locate(n))

    def __iter__(self):
        pending = [self.submit(self.part(n)) for n in range(self.ahead)]
        n = self.ahead
        while pending:
            yield pending.pop(0).result()
            pending.append(self.submit(self.part(n)))
            n += 1

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
