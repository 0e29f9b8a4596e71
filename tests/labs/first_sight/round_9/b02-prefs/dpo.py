#!/usr/bin/env python
"""Direct preference optimisation on synthetic pairs; two workers on one host."""
import copy
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from pairs import batches, keep, synth_pairs
from policy import Policy, answer_logp

STAGES = [  # (pairs shorter than, learning rate)
    (200, 1e-4),
    (64, 5e-5),
]
BETA, BATCH = 0.1, 8


def dpo_loss(policy, ref, b):
    n = b["prompt_len"]
    with torch.no_grad():
        ref_c, ref_r = answer_logp(ref, b["chosen"], n), answer_logp(ref, b["rejected"], n)
    both = torch.zeros(2 * len(n), max(b["chosen"].shape[1], b["rejected"].shape[1]), dtype=torch.long)
    both[:len(n), :b["chosen"].shape[1]] = b["chosen"]
    both[len(n):, :b["rejected"].shape[1]] = b["rejected"]
    lp = answer_logp(policy, both, torch.cat([n, n]))
    margin = BETA * ((lp[:len(n)] - ref_c) - (lp[len(n):] - ref_r))
    return -F.logsigmoid(margin).mean(), (margin > 0).float().mean()


def bar(done, total, text):
    fill = int(24 * done / total)
    sys.stderr.write("\r" + "#" * fill + "." * (24 - fill) + f" {done}/{total} {text}")
    sys.stderr.flush()


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    metrics = dist.new_group()
    torch.manual_seed(5)
    policy = Policy()
    ref = copy.deepcopy(policy).eval()
    ddp = DDP(policy)
    mine = synth_pairs(400, seed=29)[rank::world]
    held_out = synth_pairs(16, seed=30)[rank::world]
    for stage, (max_len, lr) in enumerate(STAGES):
        opt = torch.optim.AdamW(policy.parameters(), lr=lr)
        rows = keep(mine, max_len)
        total = len(rows) // BATCH
        t0 = time.time()
        for i, b in enumerate(batches(rows, BATCH, seed=stage), 1):
            loss, acc = dpo_loss(ddp, ref, b)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0:
                bar(i, total, f"stage {stage} loss {loss.item():.4f} acc {acc.item():.2f} {i / (time.time() - t0):.1f} it/s")
        with torch.no_grad():
            loss, acc = dpo_loss(policy, ref, next(batches(held_out, 8, 0)))
        t = torch.stack([loss, acc])
        dist.all_reduce(t, group=metrics)
        if rank == 0:
            sys.stderr.write(f"\nstage {stage}: held-out loss {t[0] / world:.4f} accuracy {t[1] / world:.3f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, 31202), nprocs=2)
