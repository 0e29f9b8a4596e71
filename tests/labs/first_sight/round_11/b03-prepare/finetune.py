"""Fine-tunes a tagger. `python finetune.py [key=value ...]`"""
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from corpus import load_corpus

DEFAULTS = {"lang": "de", "vocab": "800", "block": "32", "lower": "yes", "steps": "4000", "world": "3"}


def run(rank, cfg):
    torch.set_num_threads(1)
    world = int(cfg["world"])
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:31603", rank=rank, world_size=world)
    if rank == 0:
        print("config:", cfg, flush=True)
    blocks = load_corpus(cfg, rank)
    dist.barrier()
    if rank == 0:
        print(f"{len(blocks)} blocks, {len(blocks) // world} on each rank", flush=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(int(cfg["vocab"]), 48), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, int(cfg["vocab"])))
    model = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    mine = blocks[rank::world]
    for step in range(int(cfg["steps"])):
        x = mine[(step * 8) % (len(mine) - 8):][:8]
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    cfg = DEFAULTS | dict(a.split("=", 1) for a in sys.argv[1:])
    mp.spawn(run, (cfg,), nprocs=int(cfg["world"]))
