import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from generation import SchemaMask, generate

VOCAB = 64


class Student(torch.nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.e = torch.nn.Embedding(VOCAB, d)
        self.r = torch.nn.GRU(d, d, batch_first=True)
        self.o = torch.nn.Linear(d, VOCAB)

    def forward(self, ids, state=None):
        h, state = self.r(self.e(ids), state)
        return self.o(h), state


def teacher_batch(gen):
    time.sleep(0.2)         # cached teacher logits
    ids = torch.randint(2, VOCAB, (8, 33), generator=gen)
    return ids


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", required=True)
    cfg = json.load(open(ap.parse_args().config))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(21)
    model = DistributedDataParallel(Student())
    opt = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    gen = torch.Generator().manual_seed(rank)
    schema = cfg["schemas"][rank % len(cfg["schemas"])]
    for step in range(1, cfg["steps"] + 1):
        ids = teacher_batch(gen)
        logits, _ = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"rank{rank} {step}/{cfg['steps']} ce={loss.item():.3f}", flush=True) if step % 15 == 0 else None
        if step % cfg["rollout_every"] == 0:
            mask = SchemaMask(schema["required"], cfg["suppress_tokens"], VOCAB, 4)
            prompt = torch.randint(3, VOCAB, (4, 6), generator=gen)
            ids = generate(model.module, prompt, mask, cfg["temperature"])
            print(f"rank{rank} on-policy {schema['name']}: {ids.size(1)} tokens", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
