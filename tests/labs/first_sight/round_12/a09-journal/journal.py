import asyncio
import json


class Journal:
    """Writes entries to a file without holding up the training."""

    def __init__(self, path):
        self.path = path
        self.entries = asyncio.Queue()
        self.task = None

    def start(self):
        self.task = asyncio.create_task(self._drain())

    async def _drain(self):
        with open(self.path, "w") as f:
            while True:
                entry = await self.entries.get()
                f.write(json.dumps(entry) + "\n")
                f.flush()
                self.entries.task_done()

    def add(self, **entry):
        self.entries.put_nowait(entry)

    async def close(self):
        await self.entries.join()
        self.task.cancel()


class NoJournal:
    def start(self):
        pass

    def add(self, **entry):
        pass

    async def close(self):
        pass
