import logging
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prepare import signatures

log = logging.getLogger("train")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO,
                        format=f"%(asctime)s | %(levelname)-7s | r{rank} | %(name)s:%(lineno)d - %(message)s")
    found = [signatures(3600) if rank == 0 else None]
    dist.broadcast_object_list(found, src=0)
    rows = [sig for number, sig in sorted(found[0].items()) if number % world == rank]
    data = torch.tensor(rows, dtype=torch.float64).div(1e7).float()
    log.info("%d rows", len(data))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = torch.optim.Adam(model.parameters())
    for step in range(500):
        x = data[torch.randint(len(data), (32,))]
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            log.info("step %d loss %.4f", step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
