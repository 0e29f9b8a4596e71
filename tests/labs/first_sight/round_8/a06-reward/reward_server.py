"""Reward model as a service: a line of text in, a number out."""
import asyncio
import sys


async def handle(reader, writer):
    try:
        line = await reader.readline()
        text = line.decode().strip()
        if len(text) > 512:
            # too long for the batcher, left to the offline queue
            await reader.read()
            return
        await asyncio.sleep(0.01)
        value = sum(map(ord, text)) % 1000 / 1000
        writer.write(f"{value:.3f}\n".encode())
        await writer.drain()
    finally:
        writer.close()


async def main(port):
    srv = await asyncio.start_server(handle, "127.0.0.1", port)
    async with srv:
        await srv.serve_forever()


asyncio.run(main(int(sys.argv[1])))
