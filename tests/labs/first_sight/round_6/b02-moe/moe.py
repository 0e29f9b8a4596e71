import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv, group):
        ctx.send, ctx.recv, ctx.group = send, recv, group
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(back, grad.contiguous(), ctx.send, ctx.recv, group=ctx.group)
        return back, None, None, None


class ExpertLayer(nn.Module):
    """One expert on each rank of the expert group, top-1 routing, no capacity limit."""

    def __init__(self, dim, group):
        super().__init__()
        self.group = group
        self.n = dist.get_world_size(group)
        self.router = nn.Linear(dim, self.n, bias=False)
        self.expert = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        if x.shape[0] == 0:
            return x
        gates = F.softmax(self.router(x), dim=-1)
        weight, choice = gates.max(dim=-1)
        order = torch.argsort(choice)
        counts = torch.bincount(choice, minlength=self.n)
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts, group=self.group)
        send, recv = counts.tolist(), incoming.tolist()
        routed = _Exchange.apply(x[order], send, recv, self.group)
        routed = self.expert(routed)
        back = _Exchange.apply(routed, recv, send, self.group)
        out = torch.empty_like(x)
        out = out.index_copy(0, order, back)
        return x + out * weight.unsqueeze(-1)


class SmallMoE(nn.Module):
    def __init__(self, vocab, dim, layers, group):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(ExpertLayer(dim, group) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def dense_parameters(self):
        return [p for n, p in self.named_parameters() if ".expert." not in n]
