import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from slowfile import ShareFile


def snapshot(model, opt, rank, step, folder):
    """Every rank writes its half of the state."""
    mine = {k: v for k, v in model.state_dict().items() if int(k.split(".")[0]) % 2 == rank}
    out = ShareFile(os.path.join(folder, f"snap-{step}-{rank}.bin"))
    for k, v in mine.items():
        out.write(k.encode() + b"\0")
        out.write(v.contiguous().numpy().reshape(-1))
    out.close()


def run(rank, folder):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "31120"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(6)
    net = nn.Sequential(*[nn.Linear(830, 830) for _ in range(12)])
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), 1e-4)
    for step in range(1, 101):
        x = torch.randn(8, 830)
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if rank == 0:
            sys.stderr.write(f"\rtrain {step}%  loss {loss.item():.5f}")
            sys.stderr.flush()
        if step == 70:
            snapshot(net, opt, rank, step, folder)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="snap-")
    mp.spawn(run, args=(folder,), nprocs=2)
    shutil.rmtree(folder)
    print("\nok")
