import torch
import torch.distributed as dist


class Stage:
    """All forwards, then all backwards (GPipe) over `chunks` micro-batches of `size` rows."""

    def __init__(self, module, width, size, chunks):
        self.module = module
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.world - 1
        self.width, self.size, self.chunks = width, size, chunks

    def step(self, inputs=None, targets=None, loss_fn=None):
        done, total = [], 0.0
        if self.first:
            micro = [c for c in inputs.split(self.size)]
        else:
            micro = [None] * self.chunks
        for k, x in enumerate(micro):
            if not self.first:
                x = torch.empty(self.size, self.width)
                dist.recv(x, self.rank - 1)
                x.requires_grad_()
            y = self.module(x)
            if self.last:
                y = loss_fn(y, targets[k * self.size:(k + 1) * self.size]) / len(micro)
                total += y.item()
            else:
                dist.send(y.detach(), self.rank + 1)
            done.append((x, y))
        for x, y in done:
            if self.last:
                y.backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, self.rank + 1)
                y.backward(grad)
            if not self.first:
                dist.send(x.grad, self.rank - 1)
        return total
