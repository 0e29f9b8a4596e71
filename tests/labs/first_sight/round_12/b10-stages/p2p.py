import torch
import torch.distributed as dist


class Link:
    """Activations down, gradients up, between neighbouring stages."""

    def __init__(self, stage, stages, shape):
        self.prev = stage - 1 if stage else None
        self.next = stage + 1 if stage < stages - 1 else None
        self.shape = shape

    def recv_forward(self):
        if self.prev is None:
            return None
        h = torch.empty(self.shape)
        dist.recv(h, self.prev)
        return h.requires_grad_()

    def send_forward(self, h):
        if self.next is not None:
            dist.send(h.detach(), self.next)

    def recv_backward(self):
        if self.next is None:
            return None
        g = torch.empty(self.shape)
        dist.recv(g, self.next)
        return g

    def send_backward(self, g):
        if self.prev is not None:
            dist.send(g, self.prev)
