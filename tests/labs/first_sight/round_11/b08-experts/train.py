import json
import random
import time

import torch
import torch.distributed as dist
from torch import nn

from model import Model
from reducer import OverlappedReducer

STEPS_PER_EPOCH = 160


def batches(cfg, rank):
    source = next(s for s in cfg["sources"] if s["rank"] == rank)
    gen, rnd, step = torch.Generator().manual_seed(rank), random.Random(rank), 0
    while True:
        langs = next(p["languages"] for p in source["phases"] if step < p["until"])
        lang = torch.tensor([langs[i % len(langs)] for i in range(cfg["batch"])])
        base = torch.randint(0, cfg["vocab"] // 4, (cfg["batch"], 16), generator=gen)
        ids = base + lang[:, None] * (cfg["vocab"] // 4)
        yield ids, ids[:, rnd.randrange(16)], lang
        step += 1


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cfg = json.load(open("mixture.json"))
    torch.manual_seed(0)
    model = Model(cfg["vocab"], cfg["languages"])
    reducer = OverlappedReducer(model)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    data = batches(cfg, rank)
    for epoch in range(3):
        total, start = 0.0, time.time()
        for step in range(STEPS_PER_EPOCH):
            ids, target, lang = next(data)
            loss = nn.functional.cross_entropy(model(ids, lang), target)
            loss.backward()
            reducer.wait()
            opt.step()
            opt.zero_grad()
            total += loss.item()
            if step % 40 == 0:
                print(f"[{rank}] epoch {epoch} {step}/{STEPS_PER_EPOCH} loss {loss.item():.3f}", flush=True)
        rows = [None] * world
        dist.all_gather_object(rows, {"source": rank, "loss": total / STEPS_PER_EPOCH})
        if rank == 0:
            print(f"epoch {epoch} in {time.time() - start:.0f} s: {rows}", flush=True)
    dist.destroy_process_group()


main()
