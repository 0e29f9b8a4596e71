import torch.distributed as dist


class Groups:
    def __init__(self, slots):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.slot = self.rank % slots
        for s in range(slots):
            members = list(range(s, self.world, slots))
            g = dist.new_group(members)
            if s == self.slot:
                self.expert, self.expert_size = g, len(members)

    def sync(self, model):
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            if ".expert." in name:
                dist.all_reduce(p.grad, group=self.expert)
                p.grad /= self.expert_size
        for name, p in model.named_parameters():
            if ".expert." not in name and p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= self.world
