import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .comm import Groups
from .data import Corpus
from .layers import LM


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--slots", type=int, default=2)
    p.add_argument("--log-every", type=int, default=20)
    a = p.parse_args()
    dist.init_process_group("gloo")
    groups = Groups(a.slots)
    torch.manual_seed(0)
    model = LM(280, 32, groups.slot, a.slots)
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    corpus = Corpus(groups.rank, 280, 4, 24)
    for i in range(a.steps):
        ids = corpus[i]
        time.sleep(0.12)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        groups.sync(model)
        opt.step()
        if i % a.log_every == 0:
            print(f"r{groups.rank} slot{groups.slot} it {i} lm {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
