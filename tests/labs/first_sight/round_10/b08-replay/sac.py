import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from buffer import Buffer
from saver import Saver

OBS, ACT = 96, 16


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = (nn.Sequential(nn.Linear(OBS + ACT, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                                          nn.Linear(256, 1)) for _ in range(2))

    def forward(self, s, a):
        x = torch.cat([s, a], -1)
        return self.q1(x), self.q2(x)


class Arm:
    def __init__(self, seed, n):
        self.rng = np.random.default_rng(seed)
        self.s = self.rng.normal(size=(n, OBS)).astype("float32")

    def step(self, a):
        s = self.s
        nxt = 0.97 * s + 0.1 * np.tile(a, (1, OBS // ACT)) + 0.05 * self.rng.normal(size=s.shape)
        r = -np.abs(nxt).mean(1, keepdims=True)
        self.s = nxt.astype("float32")
        return np.concatenate([s, a, r, self.s], 1).astype("float32")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--save", required=True)
    ap.add_argument("--updates", type=int, default=3000)
    ap.add_argument("--save-every", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    rng = np.random.default_rng(rank)
    actor = DDP(nn.Sequential(nn.Linear(OBS, 128), nn.ReLU(), nn.Linear(128, ACT), nn.Tanh()))
    critic, target = DDP(Critic()), Critic()
    target.load_state_dict(critic.module.state_dict())
    oa, oc = torch.optim.Adam(actor.parameters(), 3e-4), torch.optim.Adam(critic.parameters(), 3e-4)
    env, buf = Arm(10 + rank, 128), Buffer(200_000, 2 * OBS + ACT + 1)
    saver = Saver(args.save) if rank == 0 else None
    for u in range(1, args.updates + 1):
        with torch.no_grad():
            a = actor.module(torch.from_numpy(env.s)).numpy()
        a = np.clip(a + 0.1 * rng.normal(size=a.shape), -1, 1).astype("float32")
        buf.add(env.step(a))
        b = torch.from_numpy(buf.sample(256, rng))
        s, act, r, s2 = b.split([OBS, ACT, 1, OBS], 1)
        with torch.no_grad():
            t = r + 0.98 * torch.min(*target(s2, actor.module(s2)))
        q1, q2 = critic(s, act)
        lc = nn.functional.mse_loss(q1, t) + nn.functional.mse_loss(q2, t)
        oc.zero_grad()
        lc.backward()
        oc.step()
        la = -critic.module.q1(torch.cat([s, actor(s)], -1)).mean()
        oa.zero_grad()
        la.backward()
        oa.step()
        with torch.no_grad():
            for p, q in zip(target.parameters(), critic.module.parameters()):
                p.lerp_(q, 0.01)
        if u % 20 == 0:
            m = torch.tensor([lc.item(), r.mean().item()])
            dist.all_reduce(m)
            if rank == 0:
                print(f"u={u} critic={m[0] / 2:.4f} reward={m[1] / 2:.4f} buffer={buf.size}", flush=True)
        if u % args.save_every == 0 and rank == 0:
            saver.submit(u, {"actor": actor.module.state_dict(), "critic": critic.module.state_dict(),
                             "buffer": buf.state(), "update": u})
    if saver:
        saver.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
