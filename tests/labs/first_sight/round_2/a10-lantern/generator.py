"""Answers prompts, one JSON line each, as the inference server of the cluster does."""
import asyncio
import json
import sys


async def client(reader, writer):
    line = await reader.readline()
    ask = json.loads(line)
    await asyncio.sleep(0.05 + (ask["seed"] % 7) * 0.02)
    length = 16 + ask["seed"] * 37 % 50
    full = length > ask["max_tokens"]
    tokens = [(ask["seed"] * 31 + i * i) % 128 for i in range(min(length, ask["max_tokens"]))]
    writer.write(json.dumps({"tokens": tokens, "finish": "length" if full else "stop"}).encode() + b"\n")
    await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(client, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(0)
