import asyncio


class RewardClient:
    def __init__(self, port, limit=16, timeout=0.7):
        self.port, self.timeout = port, timeout
        self.slots = asyncio.Semaphore(limit)
        self.timeouts = 0

    async def score(self, text):
        await self.slots.acquire()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(text.encode() + b"\n")
            await writer.drain()
            answer = await asyncio.wait_for(reader.readline(), self.timeout)
        except asyncio.TimeoutError:
            self.timeouts += 1
            return 0.0
        finally:
            writer.close()
        self.slots.release()
        return float(answer)

    async def score_all(self, texts):
        return await asyncio.gather(*(self.score(t) for t in texts))
