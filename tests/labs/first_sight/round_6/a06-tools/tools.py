import asyncio
import json
import logging

log = logging.getLogger("tools")


class ToolClient:
    def __init__(self, port, concurrency=6, retries=2):
        self.port = port
        self.retries = retries
        self.slots = asyncio.Semaphore(concurrency)
        self.failed = 0

    async def _ask(self, expr):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(json.dumps({"expr": expr}).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
        writer.close()
        if not line:
            raise ConnectionError("tool closed the connection")
        return json.loads(line)["value"]

    async def call(self, expr):
        for attempt in range(self.retries):
            await self.slots.acquire()
            try:
                value = await self._ask(expr)
            except ConnectionError as e:
                log.debug("%s: %s (attempt %d)", expr, e, attempt)
                await asyncio.sleep(0.05 * 2**attempt)
                continue
            self.slots.release()
            return value
        self.failed += 1
        return None
