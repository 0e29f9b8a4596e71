import logging
import queue
import threading
import time

import torch
import torch.distributed.rpc as rpc
import torch.nn.functional as F

import actor
from common import Net

log = logging.getLogger("learner")


class Learner:
    def __init__(self, actors, refresh_every):
        self.actors, self.refresh_every = actors, refresh_every
        self.net = Net()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.batches = queue.Queue(maxsize=64)
        self.version = 0
        self.arrived = {}
        self.turn = threading.Condition()

    # called by the actors
    def push(self, name, it, batch):
        self.batches.put(batch)
        if it % self.refresh_every == 0:
            self.meet(it)
            rpc.rpc_sync(name, actor.reload, args=(it,))
        return self.version

    def meet(self, it):
        """New weights go out when all actors have delivered, so that they act with the same ones."""
        with self.turn:
            self.arrived[it] = self.arrived.get(it, 0) + 1
            if self.arrived[it] == self.actors:
                self.version += 1
                self.turn.notify_all()
            while self.arrived[it] < self.actors:
                self.turn.wait()

    def parameters_of(self, part):
        return {k: v.detach().clone() for k, v in self.net.state_dict().items() if k.startswith(part)}

    def loop(self, updates):
        t0, total = time.time(), 0.0
        for n in range(1, updates + 1):
            obs, act, ret = self.batches.get()
            pi, v = self.net(obs)
            adv = ret - v.detach()
            lp = F.log_softmax(pi, -1).gather(-1, act[:, None]).squeeze(-1)
            loss = -(lp * adv).mean() + 0.5 * F.mse_loss(v, ret)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += ret.mean().item()
            if n % 10 == 0:
                log.info("update %d return %.4f version %d (%.1f/s)", n, total / 10, self.version, n / (time.time() - t0))
                total = 0.0


LEARNER = None


def create(actors, refresh_every):
    global LEARNER
    LEARNER = Learner(actors, refresh_every)
    return LEARNER


def push(name, it, batch):
    return LEARNER.push(name, it, batch)


def parameters_of(part):
    return LEARNER.parameters_of(part)
