import asyncio
import json


class Rollouts:
    def __init__(self, port, at_once=6, max_tokens=64):
        self.port, self.max_tokens = port, max_tokens
        self.slots = asyncio.Semaphore(at_once)

    async def ask(self, seed):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(json.dumps({"seed": seed, "max_tokens": self.max_tokens}).encode() + b"\n")
        await writer.drain()
        reply = json.loads(await reader.readline())
        writer.close()
        return reply

    async def sample(self, seed):
        await self.slots.acquire()
        reply = await self.ask(seed)
        if reply["finish"] == "length":
            return None  # cut off: no use
        self.slots.release()
        return reply["tokens"]

    async def collect(self, seeds):
        rows = await asyncio.gather(*(self.sample(seed) for seed in seeds))
        return [row for row in rows if row]
