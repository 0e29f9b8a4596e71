import os
import sys

import conf

cfg = conf.load(sys.argv[1:])

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import vocab


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"[{rank}] config: {cfg['model']} {cfg['train']}", flush=True)
    ids = vocab.get(cfg["run"]["dir"], rank == 0)
    rows = [([ids.get(w, 0) for w in words][:16], y) for words, y in vocab.corpus()][rank::world]
    x = torch.tensor([r + [0] * (16 - len(r)) for r, _ in rows])
    y = torch.tensor([lab for _, lab in rows])
    dim = cfg["model"]["dim"]
    model = DDP(nn.Sequential(nn.Embedding(len(ids) + 1, dim), nn.Flatten(), nn.Linear(16 * dim, dim), nn.ReLU(),
                              nn.Linear(dim, 3)))
    opt = torch.optim.SGD(model.parameters(), lr=cfg["train"]["lr"])
    for epoch in range(cfg["train"]["epochs"]):
        for idx in torch.randperm(len(x)).split(cfg["train"]["batch"]):
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"[{rank}] epoch {epoch} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(cfg["run"]["dir"], "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


main()
