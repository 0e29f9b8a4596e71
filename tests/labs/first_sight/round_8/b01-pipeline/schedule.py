"""One-forward-one-backward over a chain of stages."""
import torch
import torch.distributed as dist


class Chain:
    def __init__(self, placement):
        self.placement = placement
        self.stage = placement.index(dist.get_rank())
        self.last = len(placement) - 1
        self.prev = placement[self.stage - 1] if self.stage else None
        self.next = placement[self.stage + 1] if self.stage < self.last else None


def recv_from(peer, shape):
    buf = torch.empty(shape)
    dist.recv(buf, peer)
    return buf


def swap(peer, out):
    """Hand `out` to the neighbour and take what it has for us."""
    buf = torch.empty_like(out)
    if dist.get_rank() % 2 == 0:
        dist.send(out, peer)
        dist.recv(buf, peer)
    else:
        dist.recv(buf, peer)
        dist.send(out, peer)
    return buf


def one_f_one_b(chain, block, feed, loss_fn, shape, microbatches):
    warm = min(microbatches, chain.last - chain.stage)
    steady = microbatches - warm
    pending, losses = [], []

    def forward(x):
        if chain.stage == 0:
            x = next(feed)
        x.requires_grad_(chain.stage > 0)
        y = block(x)
        if chain.next is None:
            y = loss_fn(y) / microbatches
            losses.append(float(y.detach()))
        pending.append((x, y))
        return y

    def backward(grad):
        x, y = pending.pop(0)
        y.backward(grad)
        return x.grad

    for _ in range(warm):
        x = recv_from(chain.prev, shape) if chain.stage else None
        dist.send(forward(x).detach(), chain.next)
    x = recv_from(chain.prev, shape) if steady and chain.stage else None
    for i in range(steady):
        y = forward(x)
        grad = None if chain.next is None else swap(chain.next, y.detach())
        gx = backward(grad)
        if chain.stage:
            if i == steady - 1:
                dist.send(gx, chain.prev)
            else:
                x = swap(chain.prev, gx)
    for _ in range(warm):
        gx = backward(recv_from(chain.next, shape))
        if chain.stage:
            dist.send(gx, chain.prev)
    return sum(losses)
