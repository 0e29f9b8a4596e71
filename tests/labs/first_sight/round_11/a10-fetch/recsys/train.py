import itertools
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from .fetcher import Fetcher


class MF(nn.Module):
    def __init__(self, users=2000, items=500, k=32):
        super().__init__()
        self.u, self.i = nn.Embedding(users, k), nn.Embedding(items, k)

    def forward(self, u, i):
        return (self.u(u) * self.i(i)).sum(-1).sigmoid()


def main(steps=200):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(MF())
    opt = torch.optim.Adagrad(model.parameters(), 0.05)
    fetcher = Fetcher(rank)
    start = time.time()
    for step, rows in enumerate(itertools.islice(fetcher, steps)):
        for chunk in range(0, len(rows), 64):
            u, i, r = zip(*rows[chunk:chunk + 64])
            loss = (model(torch.tensor(u), torch.tensor(i)) - torch.tensor(r)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        time.sleep(0.1)
        if step % 10 == 0:
            print(json.dumps({"rank": rank, "part": step, "mse": round(loss.item(), 5), "elapsed": round(time.time() - start, 1)}), flush=True)
    fetcher.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
