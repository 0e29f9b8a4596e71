import threading

import torch


class ParameterServer:
    """Holds the parameters; trainers push gradients and pull parameters by RPC.

    The first `warm` pushes of each trainer are applied as they come; from then on the
    server averages the gradients of one step of all trainers, as in synchronous SGD.
    """

    def __init__(self, params, trainers, lr, warm):
        self.params = [p.clone() for p in params]
        self.trainers, self.lr, self.warm = trainers, lr, warm
        self.cond = threading.Condition()
        self.sums, self.got, self.version = None, 0, 0

    def apply(self, grads, scale):
        for p, g in zip(self.params, grads):
            p.sub_(g, alpha=self.lr * scale)

    def push_pull(self, step, grads):
        with self.cond:
            if step < self.warm:
                self.apply(grads, 1 / self.trainers)
                return [p.clone() for p in self.params]
            if self.sums is None:
                self.sums = [torch.zeros_like(g) for g in grads]
            for s, g in zip(self.sums, grads):
                s.add_(g)
            self.got += 1
            version = self.version
            if self.got == self.trainers:
                self.apply(self.sums, 1 / self.trainers)
                self.sums, self.got = None, 0
                self.version += 1
                self.cond.notify_all()
            else:
                self.cond.wait_for(lambda: self.version > version)
            return [p.clone() for p in self.params]


_server = None


def start(*args):
    global _server
    _server = ParameterServer(*args)


def push_pull(step, grads):
    return _server.push_pull(step, grads)
