import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from agent import Policy, flat, rollout, unflat
from env import Cart

ITERATIONS = 2000


def learner(policy, actors):
    opt = torch.optim.Adam(policy.parameters(), 3e-3)
    mean = None
    for it in range(ITERATIONS):
        dist.broadcast(flat(policy), 0)
        episodes = []
        for src in actors:
            size = torch.zeros(1, dtype=torch.int64)
            dist.recv(size, src)
            ep = torch.empty(int(size), 4)
            dist.recv(ep, src)
            episodes.append(ep)
        loss = 0.0
        for ep in episodes:
            ret = ep[:, 3].flip(0).cumsum(0).flip(0)
            ret = (ret - ret.mean()) / (ret.std(correction=0) + 1e-6)
            logp = policy(ep[:, :2]).gather(1, ep[:, 2:3].long()).squeeze(1)
            loss = loss - (logp * ret).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        score = sum(ep[:, 3].sum().item() for ep in episodes) / len(episodes)
        mean = score if mean is None else 0.9 * mean + 0.1 * score
        if it % 10 == 0:
            print(f"iter {it} return {mean:.1f} len {sum(map(len, episodes)) / len(episodes):.0f}", flush=True)


def actor(policy, rank):
    env = Cart(seed=30 + rank, spread=0.2 if rank == 1 else 0.4)
    g = torch.Generator().manual_seed(rank)
    weights = flat(policy)
    for _ in range(ITERATIONS):
        dist.broadcast(weights, 0)
        unflat(policy, weights)
        time.sleep(0.1)
        episode = rollout(env, policy, g)
        if not len(episode):
            continue
        dist.send(torch.tensor([len(episode)]), 0)
        dist.send(episode, 0)


def main(rank, world, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    policy = Policy()
    if rank == 0:
        learner(policy, range(1, world))
    else:
        actor(policy, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(3, int(sys.argv[1])), nprocs=3)
