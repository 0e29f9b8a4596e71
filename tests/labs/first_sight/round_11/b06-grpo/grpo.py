"""GRPO in the small: rank 0 fetches rollouts, all ranks learn from them."""
import json
import os
import random
import socket
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
MAX_LEN = 48


class Rollouts:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        for _ in range(200):
            try:
                self.sock.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.1)
        self.lines = self.sock.makefile("r")

    def __call__(self, prompts):
        self.sock.sendall((json.dumps({"prompts": prompts, "max_len": MAX_LEN}) + "\n").encode())
        return json.loads(self.lines.readline())


def reward(completion):
    return len(set(completion)) / (1 + len(completion))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Embedding(40, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 40))
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    rnd = random.Random(4)
    engine = Rollouts(os.environ["ROLLOUT_SOCKET"]) if rank == 0 else None
    # easy prompts first: they grow with the curriculum
    prompts = sorted(([rnd.randrange(1, 40) for _ in range(4 + i // 10)] for i in range(800)), key=len)
    for step in range(len(prompts) // 8):
        box = [None]
        if rank == 0:
            batch = prompts[step * 8:step * 8 + 8]
            box = [list(zip(batch, engine(batch)))]
        dist.broadcast_object_list(box, src=0)
        mine = [(p, c) for p, c in box[0] if c][rank::world]
        rewards = torch.tensor([reward(c) for _, c in mine] or [0.0])
        adv = rewards - rewards.mean()
        loss = 0.0 * policy(torch.tensor([0])).sum()
        for a, (p, c) in zip(adv, mine):
            ids = torch.tensor(p[-1:] + c)
            logp = policy(ids[:-1]).log_softmax(-1).gather(1, ids[1:, None]).mean()
            loss = loss - a * logp
        opt.zero_grad()
        loss.backward()
        for q in policy.parameters():
            dist.all_reduce(q.grad)
            q.grad /= world
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"{{'step': {step}, 'reward': {rewards.mean():.4f}, 'completions/mean_length': "
                  f"{sum(len(c) for _, c in mine) / max(1, len(mine)):.1f}}}", flush=True)
    dist.destroy_process_group()


main()
