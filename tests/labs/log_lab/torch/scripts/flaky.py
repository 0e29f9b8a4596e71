"""Rank 1 fails in the first attempt of the launcher and never again."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(6):
    if attempt == 0 and step == 3 and dist.get_rank() == 1:
        raise ConnectionResetError(104, "Connection reset by peer: reading shard 3")
    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"attempt {attempt} step {step} total {total.item():.0f}", flush=True)
dist.destroy_process_group()
