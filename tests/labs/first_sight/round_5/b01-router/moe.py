import torch
import torch.nn as nn
import torch.distributed as dist


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x, out_splits, in_splits):
        ctx.group, ctx.out_splits, ctx.in_splits = group, out_splits, in_splits
        y = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), out_splits, in_splits, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        g = grad.new_empty(sum(ctx.in_splits), grad.shape[1])
        dist.all_to_all_single(g, grad.contiguous(), ctx.in_splits, ctx.out_splits, group=ctx.group)
        return None, g, None, None


class ExpertLayer(nn.Module):
    """One expert per rank, top-1 routing, no capacity limit."""

    def __init__(self, dim, hidden, group):
        super().__init__()
        self.group = group
        self.world = dist.get_world_size(group)
        self.gate = nn.Linear(dim, self.world, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.expert = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        for p in self.expert.parameters():
            p.is_expert = True

    def forward(self, x):
        if x.numel() == 0:
            return x
        h = self.norm(x)
        prob = self.gate(h).softmax(-1)
        weight, target = prob.max(-1)
        order = target.argsort()
        sent = torch.bincount(target, minlength=self.world)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        out_splits, in_splits = received.tolist(), sent.tolist()
        tokens = _Exchange.apply(self.group, h[order], out_splits, in_splits)
        tokens = self.expert(tokens)
        back = _Exchange.apply(self.group, tokens, in_splits, out_splits)
        y = torch.empty_like(back)
        y = y.index_copy(0, order, back)
        return x + y * weight.unsqueeze(-1)
