"""Weights kept in equal pieces on all ranks; whole only while they are used."""
import torch
import torch.distributed as dist
from torch import nn


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, piece):
        parts = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, piece)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        world = dist.get_world_size()
        return grad.chunk(world)[dist.get_rank()] / world


class ShardedLinear(nn.Module):
    def __init__(self, d_in, d_out, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        full = torch.randn(d_in * d_out, generator=g) / d_in ** 0.5
        self.shape = (d_out, d_in)
        self.piece = nn.Parameter(full.chunk(dist.get_world_size())[dist.get_rank()].clone())

    def forward(self, x):
        return nn.functional.linear(x, _Whole.apply(self.piece).view(self.shape))
