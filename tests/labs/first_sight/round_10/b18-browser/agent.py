import multiprocessing as mp
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import env_service


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 16))

    def forward(self, x):
        return torch.log_softmax(self.net(x), -1)


class Browser:
    def __init__(self, seed):
        ctx = mp.get_context("spawn")
        self.conn, child = ctx.Pipe()
        self.proc = ctx.Process(target=env_service.serve, args=(child, seed), daemon=True)
        self.proc.start()
        child.close()

    def act(self, action):
        self.conn.send({"action": int(action)})
        return self.conn.recv()

    def close(self):
        self.conn.send(None)
        self.proc.join()


def episode(agent, env, length, obs):
    logps, rewards = [], []
    for _ in range(length):
        lp = agent(obs)
        a = torch.multinomial(lp.detach().exp(), 1)
        r = env.act(a)
        obs = torch.tensor(r["obs"])
        logps.append(lp[a])
        rewards.append(r["reward"])
    return torch.cat(logps), torch.tensor(rewards), obs


def run(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    agent = DDP(Agent())
    opt = ZeroRedundancyOptimizer(agent.parameters(), optimizer_class=torch.optim.Adam, lr=3e-3)
    env, obs = Browser(rank + 1), torch.zeros(16)
    torch.manual_seed(rank)
    history = []
    for it in range(9):
        lp, rew, obs = episode(agent, env, 5, obs)
        loss = -(lp * (rew - rew.mean())).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        m = rew.mean()
        dist.all_reduce(m)
        history.append(m.item() / world)
    opt.consolidate_state_dict(to=0)
    if rank == 0:
        torch.save({"agent": agent.module.state_dict(), "opt": opt.state_dict(), "reward": history}, "agent.pt")
        with open("summary.txt", "w") as f:
            f.write(f"{time.ctime()}\n" + "\n".join(f"{i} {v:.3f}" for i, v in enumerate(history)) + "\n")
    env.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as tmp
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tmp.spawn(run, args=(2, 31420), nprocs=2)
