"""Token exchange between expert-parallel ranks (one expert per rank)."""
import torch
import torch.distributed as dist


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv, group):
        ctx.splits, ctx.group = (send, recv), group
        out = x.new_empty(sum(recv), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), recv, send, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, recv = ctx.splits
        out = grad.new_empty(sum(send), grad.size(1))
        dist.all_to_all_single(out, grad.contiguous(), send, recv, group=ctx.group)
        return out, None, None, None


class ExpertExchange(torch.nn.Module):
    def __init__(self, dim, group):
        super().__init__()
        self.group = group
        self.ep = dist.get_world_size(group)
        self.router = torch.nn.Linear(dim, self.ep, bias=False)
        self.expert = torch.nn.Sequential(
            torch.nn.Linear(dim, 4 * dim), torch.nn.GELU(), torch.nn.Linear(4 * dim, dim))
        for p in self.expert.parameters():
            p.is_expert = True

    def forward(self, tokens):
        # tokens: [n, dim], only positions that carry loss
        if tokens.size(0) == 0:
            return tokens
        probs = self.router(tokens).softmax(-1)
        weight, owner = probs.max(-1)
        order = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=self.ep)
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts, group=self.group)
        send, recv = counts.tolist(), incoming.tolist()
        mine = _AllToAll.apply(tokens[order], send, recv, self.group)
        mine = self.expert(mine)
        back = _AllToAll.apply(mine, recv, send, self.group)
        out = torch.zeros_like(tokens).index_copy(0, order, back)
        return tokens + weight.unsqueeze(-1) * out
