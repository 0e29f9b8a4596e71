import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import tqdm

from .data import pages
from .model import DocModel


class Meter:
    """Mean over ranks, outside of the gradient group."""

    def __init__(self, group):
        self.group = group

    def __call__(self, value):
        t = torch.tensor([float(value)])
        dist.all_reduce(t, group=self.group)
        return t.item() / dist.get_world_size(self.group)


def main(steps=900, batch_size=12):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(9)
    meter = Meter(dist.new_group())
    model = DDP(DocModel(), bucket_cap_mb=0.05)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = pages(rank, batch_size)
    bar = tqdm(total=steps, desc="docparse", position=rank, leave=True, ncols=90)
    for _ in range(steps):
        x, layout, has, cells = next(data)
        out, tab = model(x, has)
        loss = F.cross_entropy(out, layout)
        if tab is not None:
            loss = loss + 0.5 * F.cross_entropy(tab, cells[has])
        opt.zero_grad()
        loss.backward()
        opt.step()
        bar.set_postfix_str(f"loss {meter(loss.detach()):.3f}")
        bar.update(1)
    bar.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
