"""Synchronous parameter server: an update is made when every trainer has sent its gradients."""
import threading

import torch
from torch import nn
import torch.distributed.rpc as rpc


def make_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 5))


class ParameterServer:
    def __init__(self, trainers, lr=0.1):
        self.net = make_net()
        self.opt = torch.optim.SGD(self.net.parameters(), lr)
        self.trainers = trainers
        self.lock = threading.Lock()
        self.arrived = 0
        self.future = torch.futures.Future()
        for p in self.net.parameters():
            p.grad = torch.zeros_like(p)

    def weights(self):
        return [p.detach() for p in self.net.parameters()]

    @staticmethod
    @rpc.functions.async_execution
    def push(ref, grads):
        self = ref.local_value()
        with self.lock:
            for p, g in zip(self.net.parameters(), grads):
                p.grad += g / self.trainers
            self.arrived += 1
            future = self.future
            if self.arrived == self.trainers:
                self.opt.step()
                self.opt.zero_grad(set_to_none=False)
                self.arrived = 0
                self.future = torch.futures.Future()
                future.set_result(self.weights())
        return future
