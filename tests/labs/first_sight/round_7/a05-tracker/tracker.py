"""Metrics of a run, written in the background by an event loop."""
import asyncio
import json
import threading


class Tracker:
    def __init__(self, path, limit=400):
        self.path, self.limit = path, limit
        self.rows = []
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="tracker", daemon=True).start()

    def _call(self, coro):
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result()

    async def _append(self, row):
        self.rows.append(row)
        if len(self.rows) >= self.limit:
            self.flush()

    async def _write(self):
        rows, self.rows = self.rows, []
        with open(self.path, "a") as f:
            for row in rows:
                f.write(json.dumps(row) + "\n")
        await asyncio.sleep(0)

    def log(self, **row):
        self._call(self._append(row))

    def flush(self):
        self._call(self._write())

    def close(self):
        self.flush()
        self.loop.call_soon_threadsafe(self.loop.stop)
