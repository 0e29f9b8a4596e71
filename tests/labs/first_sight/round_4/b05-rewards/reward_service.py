import argparse
import asyncio
import logging

from aiohttp import web

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
log = logging.getLogger("reward")
MAX_PARALLEL = 4


def last_boxed(text):
    start = text.rindex("\\boxed{") + len("\\boxed{")
    depth, i = 1, start
    while depth:
        c = text[i]
        depth += (c == "{") - (c == "}")
        i += 1
    return text[start:i - 1]


class Scorer:
    def __init__(self):
        self.slots = asyncio.Semaphore(MAX_PARALLEL)

    async def score(self, request):
        body = await request.json()
        await self.slots.acquire()
        rewards = []
        for text, gold in zip(body["completions"], body["answers"]):
            answer = last_boxed(text)
            await asyncio.sleep(0.02)            # symbolic comparison
            rewards.append(float(answer == gold))
        self.slots.release()
        return web.json_response({"rewards": rewards})


async def health(_):
    return web.json_response({"status": "ok"})


async def serve(addr_file):
    scorer = Scorer()
    app = web.Application()
    app.add_routes([web.post("/score", scorer.score), web.get("/health", health)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = site._server.sockets[0].getsockname()[:2]
    with open(addr_file, "w") as f:
        f.write(f"{host}:{port}")
    log.info("listening")
    await asyncio.Event().wait()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--addr-file", required=True)
    asyncio.run(serve(ap.parse_args().addr_file))
