import asyncio
import os
import random
import sys
import time

import torch
import torch.distributed as dist

from tool_client import ToolClient

# turns with tools per episode: search agents need few, math agents many
TURNS = [1, 3]


async def episode(client, rng, turns):
    total = 0.0
    for _ in range(turns):
        await asyncio.sleep(rng.uniform(0.03, 0.08))          # model turn
        total += await client.call("calc", [rng.randint(0, 9) for _ in range(4)])
    return total / (18.0 * turns)


async def collect(client, rng, turns, n=2):
    return await asyncio.gather(*(episode(client, rng, turns) for _ in range(n)))


def run(rank, world, rendezvous, tools):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(rendezvous))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    loop = asyncio.new_event_loop()
    rng = random.Random(rank)
    client = ToolClient(tools)
    w = torch.zeros(8, requires_grad=True)
    opt = torch.optim.SGD([w], lr=0.01)
    t0 = time.time()
    for it in range(1, 401):
        returns = loop.run_until_complete(collect(client, rng, TURNS[rank]))
        loss = ((w.sum() - sum(returns) / len(returns)) ** 2)
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(w.grad)
        opt.step()
        if it % 10 == 0:
            sys.stdout.write(f"trainer-{rank} | it {it:4d} | return {returns[0]:.3f} | {time.time() - t0:6.1f}s\n")
            sys.stdout.flush()
    dist.destroy_process_group()
