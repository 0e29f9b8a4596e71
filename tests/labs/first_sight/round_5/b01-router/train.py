import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed as dist

from data import Dialogues
from moe import ExpertLayer


class Model(nn.Module):
    def __init__(self, vocab, dim, layers, group):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(ExpertLayer(dim, dim * 4, group) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def sync_dense(model, world):
    shared = [p for p in model.parameters() if not getattr(p, "is_expert", False)]
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in shared])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in shared:
        p.grad = flat[at:at + p.numel()].view_as(p).clone()
        at += p.numel()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    ep = dist.new_group(list(range(world)))
    model = Model(800, 128, 2, ep)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    t0 = time.time()
    for ids, step in Dialogues(rank):
        if step == 400:
            break
        inputs, labels = ids[:-1], ids[1:]
        logits = model(inputs)
        loss = F.cross_entropy(logits, labels, reduction="sum") / max(1, labels.numel())
        opt.zero_grad()
        loss.backward()
        sync_dense(model, world)
        opt.step()
        time.sleep(0.25)
        if step % 10 == 0 and rank == 0:
            print(f"step {step:4d} | loss {loss.item():.3f} | tokens {labels.numel():4d} | {time.time() - t0:.0f} s", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print("done")


if __name__ == "__main__":
    main()
