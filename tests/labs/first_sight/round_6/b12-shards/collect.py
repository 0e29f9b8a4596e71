"""Trains a small policy and keeps all transitions, in shards of some steps that all ranks close together."""
import collections
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
STEPS_PER_SHARD = 60


class ShardWriter:
    def __init__(self, folder, number, group):
        self.path = os.path.join(folder, f"shard{number:03d}_rank{dist.get_rank()}.npz")
        self.group = group
        self.number = number
        self.rows = []
        self.closed = False

    def add(self, obs, action, reward):
        self.rows.append((obs, action, reward))

    def close(self):
        if self.closed:
            return
        self.closed = True
        obs, act, rew = zip(*self.rows)
        np.savez(self.path, obs=np.stack(obs), act=np.stack(act), rew=np.stack(rew))
        dist.barrier(group=self.group)

    def __del__(self):
        self.close()


class Board:
    """What rank 0 tells about the last shards."""

    def __init__(self, keep=3):
        self.recent = collections.deque(maxlen=keep)

    def note(self, writer, rewards):
        self.recent.append((writer, float(np.mean(rewards))))
        for w, mean in self.recent:
            print(f"shard {w.number} rows {len(w.rows)} reward {mean:+.3f}", flush=True)


class Env:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.normal(size=(8, 6)).astype(np.float32)

    def step(self, action):
        push = np.where(action == 1, 0.1, -0.1).astype(np.float32)
        self.state += push[:, None] + self.rng.normal(scale=0.05, size=self.state.shape).astype(np.float32)
        reward = -np.abs(self.state.mean(axis=1))
        self.state[reward < -2] = 0
        return self.state.copy(), reward


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard_group = dist.new_group()
    torch.manual_seed(0)
    policy = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)))
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    env = Env(rank)
    obs = env.state.copy()
    folder = "transitions"
    os.makedirs(folder, exist_ok=True)
    board = Board() if rank == 0 else None
    writer = ShardWriter(folder, 0, shard_group)
    rewards = []
    for step in range(1, 1501):
        dist_ = torch.distributions.Categorical(logits=policy(torch.from_numpy(obs)))
        action = dist_.sample()
        new_obs, reward = env.step(action.numpy())
        time.sleep(0.25)
        writer.add(obs, action.numpy(), reward)
        rewards.append(reward.mean())
        adv = torch.from_numpy(reward - reward.mean()).float()
        loss = -(dist_.log_prob(action) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        obs = new_obs
        if rank == 0 and step % 10 == 0:
            print(f"step {step} reward {np.mean(rewards[-10:]):+.3f}", flush=True)
        if step % STEPS_PER_SHARD == 0:
            if board:
                board.note(writer, rewards)
            writer = ShardWriter(folder, step // STEPS_PER_SHARD, shard_group)
            rewards = []
    writer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
