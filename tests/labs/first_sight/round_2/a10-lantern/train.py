import asyncio
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn

from rollout import Rollouts

ITERATIONS, PROMPTS = 200, 10


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(128, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, 128)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def reward(row):
    return sum(t < 64 for t in row) / len(row)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        server = subprocess.Popen([sys.executable, "generator.py"], stdout=subprocess.PIPE, text=True)
        rollouts = Rollouts(int(server.stdout.readline()))
        loop = asyncio.new_event_loop()
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for iteration in range(ITERATIONS):
        rows = [None]
        if rank == 0:
            # answers grow longer while the policy learns
            rows[0] = loop.run_until_complete(
                rollouts.collect(range(iteration * PROMPTS, (iteration + 1) * PROMPTS)))
        dist.broadcast_object_list(rows, src=0)
        mine = rows[0][rank::world]
        losses = []
        for row in mine:
            ids = torch.tensor(row)[None]
            nll = nn.functional.cross_entropy(policy(ids[:, :-1])[0], ids[0, 1:])
            losses.append(nll * reward(row))
        loss = torch.stack(losses).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0:
            print(f"iter {iteration:3d} answers {len(rows[0])} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        server.terminate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
