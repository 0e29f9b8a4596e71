import time
from multiprocessing.connection import Client

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from common import make_policy


class ActorHandle:
    def __init__(self, address, group):
        self.group = group
        for _ in range(600):
            try:
                self.conn = Client(address)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.1)

    def generate(self, n):
        self.conn.send(("generate", n))
        return torch.tensor(self.conn.recv()[1])

    def push(self, module):
        params = [(n, p.detach()) for n, p in module.named_parameters()]
        self.conn.send(("update_weights", [(n, tuple(p.shape)) for n, p in params]))
        for _, p in params:
            dist.broadcast(p, src=0, group=self.group)
        self.conn.recv()


def learn(address, train_group, sync_group, steps=3000, ema_from=120, push_every=10):
    rank = dist.get_rank()
    policy = make_policy()
    opt = torch.optim.Adam(policy.parameters(), 1e-3)
    ema = None
    actor = ActorHandle(address, sync_group) if rank == 0 else None
    for step in range(1, steps + 1):
        x = torch.empty(16, 25, dtype=torch.long)
        if rank == 0:
            x.copy_(actor.generate(16))
        dist.broadcast(x, src=0, group=train_group)
        mine = x[rank * 8:rank * 8 + 8]
        reward = (mine.diff(dim=1) > 0).float().mean(1)
        logp = policy(mine[:, :-1]).log_softmax(-1).gather(2, mine[:, 1:, None]).squeeze(2).sum(1)
        loss = -((reward - reward.mean()) * logp).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad, group=train_group)
        opt.step()
        if step == ema_from:  # generate with averaged weights from here on
            ema = AveragedModel(policy, multi_avg_fn=get_ema_multi_avg_fn(0.95))
        if ema:
            ema.update_parameters(policy)
        if step % push_every == 0:
            if rank == 0:
                actor.push(ema or policy)
                print(f"step {step}: reward {reward.mean():.3f} (weights pushed)", flush=True)
            dist.barrier(group=train_group)
    if rank == 0:
        actor.conn.send(("stop", None))
