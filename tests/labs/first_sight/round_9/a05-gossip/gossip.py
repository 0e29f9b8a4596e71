"""Decentralised averaging: every rank mixes its weights with those of its two neighbours on the ring."""
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Ring:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        edges = [dist.new_group(sorted({i, (i + 1) % world})) for i in range(world)]
        self.right = edges[rank]
        self.left = edges[(rank - 1) % world]

    @torch.no_grad()
    def mix(self, model):
        own = parameters_to_vector(model.parameters())
        seen = own.clone()
        for edge in (self.right, self.left):
            pair = own.clone()
            dist.all_reduce(pair, group=edge)
            seen += pair - own
        vector_to_parameters(seen / 3, model.parameters())


@torch.no_grad()
def mix_all(model, world):
    vec = parameters_to_vector(model.parameters())
    dist.all_reduce(vec)
    vector_to_parameters(vec / world, model.parameters())
