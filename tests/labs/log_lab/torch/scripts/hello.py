"""Starts, reduces once, ends: for cases that break before training begins."""

import datetime
import os

import torch
import torch.distributed as dist

seconds = float(os.environ.get("PG_TIMEOUT", "60"))
backend = os.environ.get("BACKEND", "gloo")
if os.environ.get("DEVICE"):
    torch.cuda.set_device(int(os.environ["DEVICE"]))
dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))
ones = torch.ones(1)
dist.all_reduce(ones)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {ones.item():.0f}", flush=True)
dist.destroy_process_group()
