"""Reduces each gradient as soon as it is there, beside the rest of the backward pass."""
import torch.distributed as dist


class OverlappedReducer:
    def __init__(self, model):
        self.world = dist.get_world_size()
        self.works = []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self._ready)

    def _ready(self, p):
        p.grad.div_(self.world)
        self.works.append(dist.all_reduce(p.grad, async_op=True))

    def wait(self):
        for w in self.works:
            w.wait()
        self.works.clear()
