"""A stand-in for the hosted judge: answers after a while, and sometimes has a slow spell."""
import asyncio
import random
import sys

from aiohttp import web


async def rate(request):
    body = await request.json()
    rng = request.app["rng"]
    delay = rng.uniform(0.02, 0.08)
    if body["client"] == "train-1" and rng.random() < 0.07:
        delay = 3.0
    await asyncio.sleep(delay)
    return web.json_response({"score": sum(body["answer"]) % 11 / 10})


async def main(path):
    app = web.Application()
    app["rng"] = random.Random(5)
    app.router.add_post("/rate", rate)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    with open(path, "w") as f:
        f.write(f"http://127.0.0.1:{port}/rate")
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1]))
