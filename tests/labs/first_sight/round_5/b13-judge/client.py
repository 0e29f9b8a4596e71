import asyncio

import aiohttp


class JudgeClient:
    """Asks the judge about many answers at once, never more than `limit` of them in flight."""

    def __init__(self, url, name, limit=8, timeout=1.0, tries=5):
        self.url, self.name, self.tries = url, name, tries
        self.timeout = aiohttp.ClientTimeout(total=timeout)
        self.slots = asyncio.Semaphore(limit)
        self.retried = 0
        self.session = None

    async def ask(self, answer):
        await self.slots.acquire()
        payload = {"client": self.name, "answer": answer}
        async with self.session.post(self.url, json=payload, timeout=self.timeout) as r:
            r.raise_for_status()
            score = (await r.json())["score"]
        self.slots.release()
        return score

    async def ask_with_retry(self, answer):
        for attempt in range(self.tries):
            try:
                return await self.ask(answer)
            except (asyncio.TimeoutError, aiohttp.ClientError):
                self.retried += 1
                await asyncio.sleep(0.1 * 2 ** attempt)
        return 0.5

    async def score(self, answers):
        if self.session is None:
            self.session = aiohttp.ClientSession()
        return await asyncio.gather(*(self.ask_with_retry(a) for a in answers))

    async def close(self):
        if self.session is not None:
            await self.session.close()
