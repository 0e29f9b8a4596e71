import glob
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from clean import clean_all


def prepare(out):
    docs = []
    for path in sorted(glob.glob("raw/*.jsonl")):
        with open(path) as f:
            docs += [json.loads(line)["text"] for line in f]
    print(f"[prepare] {len(docs)} documents", flush=True)
    text = "\n".join(clean_all(docs))
    with open(out, "w") as f:
        f.write(text)
    print(f"[prepare] {len(text)} characters", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        prepare("corpus.txt")
    dist.barrier()
    data = torch.tensor(list(open("corpus.txt", "rb").read()))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(256, 64), nn.Flatten(), nn.Linear(64 * 32, 256), nn.ReLU(), nn.Linear(256, 256))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters())
    g = torch.Generator().manual_seed(rank)
    for step in range(600):
        i = torch.randint(0, len(data) - 33, (16,), generator=g)
        x = torch.stack([data[k: k + 32] for k in i])
        y = data[i + 32]
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"[train] {step} {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
