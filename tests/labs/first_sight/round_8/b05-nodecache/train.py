import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shards import Packer, rows

PARTS = 12


class Decoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.emb = nn.Embedding(1000, dim)
        self.mix = nn.Conv1d(dim, dim, 5)
        self.out = nn.Linear(dim, 1000)

    def forward(self, ids):
        h = nn.functional.pad(self.emb(ids[:, :-1]).transpose(1, 2), (4, 0))
        logits = self.out(torch.relu(self.mix(h)).transpose(1, 2))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        Packer(1, PARTS).start()
    model = DDP(Decoder())
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    tic = time.time()
    for step, (part, batch) in enumerate(rows(PARTS, rank, world, 2), 1):
        loss = model(torch.from_numpy(batch.copy()).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if rank == 0 and step % 10 == 0:
            json.dump({"step": step, "part": part, "loss": round(loss.item(), 4),
                       "tok_per_s": int(step * 2 * 64 * world / (time.time() - tic))}, sys.stdout)
            print(flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
