"""A calculator for the model: one line of JSON in, one out."""
import asyncio
import json
import random
import sys


async def serve(reader, writer):
    try:
        req = json.loads(await reader.readline())
        await asyncio.sleep(random.uniform(0.02, 0.1))
        value = eval(req["expr"], {"__builtins__": {}})
        writer.write(json.dumps({"value": value}).encode() + b"\n")
        await writer.drain()
    except (ArithmeticError, SyntaxError, ValueError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(0)
