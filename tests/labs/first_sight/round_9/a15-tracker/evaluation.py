import torch
import torch.distributed as dist


def samples(model, n=40):
    """A few outputs for the eye."""
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return [model.module(torch.randn(8, 20, generator=g)).argmax(1).tolist() for _ in range(n)]


def scores(model, rank):
    g = torch.Generator().manual_seed(rank)
    with torch.no_grad():
        for name, spread in (("near", 0.5), ("far", 2.0)):
            x = torch.randn(400, 20, generator=g) * spread
            good = (model.module(x).argmax(1) == (x.sum(1) > 0)).float().mean()
            dist.all_reduce(good)
            yield name, good.item() / dist.get_world_size()
