import torch
import torch.distributed as dist


class Wire:
    """Blocking point-to-point transfers between neighbouring stages."""

    def __init__(self, shape):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.shape = shape

    @property
    def first(self):
        return self.rank == 0

    @property
    def last(self):
        return self.rank == self.world - 1

    def recv_forward(self):
        if self.first:
            return None
        buf = torch.empty(self.shape)
        dist.recv(buf, self.rank - 1)
        return buf.requires_grad_()

    def send_forward(self, x):
        if not self.last:
            dist.send(x.detach().contiguous(), self.rank + 1)

    def recv_backward(self):
        if self.last:
            return None
        buf = torch.empty(self.shape)
        dist.recv(buf, self.rank + 1)
        return buf

    def send_backward(self, g):
        if not self.first:
            dist.send(g.contiguous(), self.rank - 1)


def one_f_one_b(stage, wire, micro_batches, loss_fn):
    n = len(micro_batches)
    warm_up = min(wire.world - wire.rank - 1, n)
    pending, losses = [], []

    def forward(i):
        x = wire.recv_forward()
        tokens, target = micro_batches[i]
        y = stage(tokens if x is None else x)
        if wire.last:
            y = loss_fn(y, target) / n
            losses.append(y.item())
        else:
            wire.send_forward(y)
        pending.append((x, y))

    def backward():
        x, y = pending.pop(0)
        g = wire.recv_backward()
        y.backward(g) if g is not None else y.backward()
        if x is not None:
            wire.send_backward(x.grad)

    for i in range(warm_up):
        forward(i)
    for i in range(warm_up, n):
        forward(i)
        backward()
    while pending:
        backward()
    return sum(losses)
