import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dataset import loader
from model import Tagger


class Meter:
    """Mean over ranks, on a group of its own."""

    def __init__(self):
        self.group = dist.new_group(backend="gloo")
        self.n = dist.get_world_size()

    def __call__(self, value):
        t = torch.tensor([value])
        dist.all_reduce(t, group=self.group)
        return t.item() / self.n


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger(), bucket_cap_mb=0.05)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    mean = Meter()
    step = 0
    for epoch in range(30):
        for x, tags, langs in loader(rank, world, 6):
            loss = model(x, tags, langs)
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            avg = mean(loss.item())
            step += 1
            time.sleep(0.04)
            if rank == 0 and step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {avg:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
