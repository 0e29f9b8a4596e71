import logging
import multiprocessing as mp
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from actor import ACT, HID, OBS, run_actor
from weights import SharedWeights

logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
EPISODES, UPDATES, LR = 4, 1500, 0.03


def returns(rewards, gamma=0.95):
    out, g = [], 0.0
    for r in reversed(rewards):
        g = r + gamma * g
        out.append(g)
    return out[::-1]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    log = logging.getLogger(f"learner{rank}")
    torch.set_num_threads(1)
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(OBS, HID), nn.Tanh(), nn.Linear(HID, ACT))
    opt = torch.optim.Adam(net.parameters(), lr=LR)
    size = sum(p.numel() for p in net.parameters())

    shared = SharedWeights(size)
    ctx = mp.get_context("spawn")
    episodes = ctx.Queue(8)
    actor = ctx.Process(target=run_actor, args=(shared.name, size, episodes, 70 + rank), daemon=True)
    actor.start()
    shared.publish(net.parameters())

    for update in range(UPDATES):
        batch = [episodes.get() for _ in range(EPISODES)]
        obs = torch.from_numpy(np.stack([o for e in batch for o, _, _ in e]))
        act = torch.tensor([a for e in batch for _, a, _ in e])
        ret = torch.tensor([g for e in batch for g in returns([r for _, _, r in e])])
        logp = F.log_softmax(net(obs), -1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(logp.gather(1, act[:, None]).squeeze(1) * (ret - ret.mean())).mean() - 0.002 * entropy
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        try:
            shared.publish(net.parameters())
        except (ValueError, OverflowError) as e:
            log.info("actors keep the old weights: %s", e)
        if update % 10 == 0 and rank == 0:
            log.info("update %d return %.3f entropy %.3f", update, ret.mean().item(), entropy.item())
    actor.terminate()
    shared.close()
    shared.shm.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
