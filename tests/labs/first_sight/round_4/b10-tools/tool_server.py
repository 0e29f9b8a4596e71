"""Calculator and search for the agents; one line of JSON per call."""
import asyncio
import json

CALLS_PER_CONNECTION = 360     # the gateway recycles connections


async def on_connect(reader, writer):
    for _ in range(CALLS_PER_CONNECTION):
        line = await reader.readline()
        if not line:
            break
        call = json.loads(line)
        await asyncio.sleep(0.01)
        value = sum(call["args"]) if call["tool"] == "calc" else len(call["args"])
        writer.write(json.dumps({"id": call["id"], "value": value}).encode() + b"\n")
        await writer.drain()
    writer.close()


async def _serve(q):
    srv = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    q.put(srv.sockets[0].getsockname()[1])
    async with srv:
        await srv.serve_forever()


def serve(q):
    asyncio.run(_serve(q))
