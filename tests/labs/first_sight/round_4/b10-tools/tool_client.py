import asyncio
import itertools
import json


class ToolClient:
    """One connection, calls one after the other."""

    def __init__(self, port):
        self.port = port
        self.lock = asyncio.Lock()
        self.ids = itertools.count()
        self.reader = self.writer = None

    async def connect(self):
        async with self.lock:
            if self.writer is not None:
                self.writer.close()
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def call(self, tool, args):
        if self.writer is None:
            await self.connect()
        async with self.lock:
            msg = json.dumps({"id": next(self.ids), "tool": tool, "args": args}).encode() + b"\n"
            for attempt in range(3):
                try:
                    self.writer.write(msg)
                    await self.writer.drain()
                    line = await self.reader.readline()
                    if not line:
                        raise ConnectionResetError("closed by the gateway")
                    return json.loads(line)["value"]
                except ConnectionError:
                    await self.connect()
            raise RuntimeError("tool gateway is not reachable")
