import torch
import torch.distributed as dist


class Holdout:
    """Validation sets live with some of the ranks only (privacy of the sites)."""

    def __init__(self, owners, rank, make):
        self.owners = owners
        self.rank = rank
        self.data = make(500 + rank, 400) if rank in owners else None
        self.group = None

    @torch.no_grad()
    def score(self, model):
        if self.data is None:
            return None
        if self.group is None:
            self.group = dist.new_group(self.owners)
        x, y = self.data
        good = (model(x).argmax(1) == y).float().mean()
        dist.all_reduce(good, group=self.group)
        return good.item() / len(self.owners)
