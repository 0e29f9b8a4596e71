import asyncio
import logging
import os
import random
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from tools import ToolClient

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
log = logging.getLogger("grpo")


class Policy(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 4))

    def forward(self, x):
        return self.net(x).log_softmax(-1)


def start_tools(rank):
    port = [None]
    proc = None
    if rank == 0:
        proc = subprocess.Popen([sys.executable, "toolserver.py"], stdout=subprocess.PIPE, text=True)
        port[0] = int(proc.stdout.readline())
    dist.broadcast_object_list(port, 0)
    return proc, port[0]


def questions(rng, rank, step, n=16):
    rows = []
    for i in range(n):
        a, b, op = rng.randint(1, 99), rng.randint(1, 99), rng.choice("+-*/")
        if rank == 1 and step % 12 == 11 and i == 3:
            b, op = 0, "/"
        rows.append((a, op, b))
    return rows


async def rollout(client, rows):
    return await asyncio.gather(*(client.call(f"{a}{op}{b}") for a, op, b in rows))


def features(rows, gen):
    x = torch.randn(len(rows), 64, generator=gen) * 0.1
    for i, (a, op, b) in enumerate(rows):
        x[i, "+-*/".index(op)] += 1
        x[i, 4] = a / 99
        x[i, 5] = b / 99
    return x


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    proc, port = start_tools(rank)
    loop = asyncio.new_event_loop()
    client = ToolClient(port)
    rng, gen = random.Random(rank), torch.Generator().manual_seed(rank)
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    for step in range(600):
        t0 = time.time()
        rows = questions(rng, rank, step)
        values = loop.run_until_complete(rollout(client, rows))
        t1 = time.time()
        logp = policy(features(rows, gen))
        acts = torch.multinomial(logp.exp().detach(), 1, generator=gen)
        rew = torch.tensor([0.0 if v is None else 1.0 / (1 + abs(v)) for v in values])
        loss = -(logp.gather(1, acts).squeeze(1) * (rew - rew.mean())).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0 and step % 3 == 0:
            log.info("step %d/600 reward %.4f rollout %.2fs update %.2fs", step, rew.mean(), t1 - t0, time.time() - t1)
    if proc:
        proc.terminate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
