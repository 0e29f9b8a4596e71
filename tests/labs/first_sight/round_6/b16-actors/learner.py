"""Two learners, each with an actor of its own that plays episodes and sends them through a queue."""
import argparse
import logging
import multiprocessing as mp
import os
import queue
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
OBS, ACTIONS, LENGTH = 84, 4, 400


def policy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(OBS, 128), nn.ReLU(), nn.Linear(128, ACTIONS + 1))


def act(state_dict, episodes, stop, seed):
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    net = policy()
    net.load_state_dict(state_dict)
    while not stop.is_set():
        obs = rng.normal(size=(LENGTH, OBS)).astype(np.float32)
        with torch.no_grad():
            logits = net(torch.from_numpy(obs))[:, :ACTIONS]
            actions = torch.distributions.Categorical(logits=logits).sample().numpy()
        reward = (obs[:, 0] > 0) == (actions % 2 == 0)
        time.sleep(0.1)
        episodes.put({"obs": obs, "actions": actions, "reward": reward.astype(np.float32)})


class Actor:
    def __init__(self, net, seed):
        ctx = mp.get_context("spawn")
        self.episodes = ctx.Queue(maxsize=8)
        self.stop = ctx.Event()
        weights = {k: v.detach().clone() for k, v in net.state_dict().items()}
        weights = {k.removeprefix("module."): v for k, v in weights.items()}
        self.process = ctx.Process(target=act, args=(weights, self.episodes, self.stop, seed), daemon=True)
        self.process.start()

    def rest(self):
        """Episodes still under way when the actor was told to stop, for the statistics."""
        returns = []
        while self.process.is_alive() or not self.episodes.empty():
            try:
                returns.append(self.episodes.get(timeout=0.2)["reward"].sum())
            except queue.Empty:
                pass
        return returns


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=600)
    p.add_argument("--refresh", type=int, default=40, help="new actor with new weights after so many updates")
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="[%(relativeCreated)8d ms] %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    net = nn.parallel.DistributedDataParallel(policy())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    actor = Actor(net, rank)
    for update in range(1, args.updates + 1):
        ep = actor.episodes.get()
        obs, actions = torch.from_numpy(ep["obs"]), torch.from_numpy(ep["actions"])
        reward = torch.from_numpy(ep["reward"])
        out = net(obs)
        logp = torch.distributions.Categorical(logits=out[:, :ACTIONS]).log_prob(actions)
        value = out[:, ACTIONS]
        loss = -(logp * (reward - value.detach())).mean() + 0.5 * (value - reward).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.3)
        if rank == 0 and update % 10 == 0:
            logging.info("update %d return %.1f loss %.3f", update, ep["reward"].sum(), loss.item())
        if update % args.refresh == 0:
            actor.stop.set()
            if rank == 0:
                logging.info("actor of this learner left %d episodes", len(actor.rest()))
            actor.process.join()
            actor = Actor(net, rank + 10 * update)
    actor.stop.set()
    actor.rest()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
