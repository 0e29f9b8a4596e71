import io
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from store import QuotaFile

RATES = {0: 8 << 20, 1: 260 << 10}  # bytes a second: node 1 shares its link


def save(obj, path, rank):
    buf = io.BytesIO()
    torch.save(obj, buf)
    f = QuotaFile(path, RATES[rank])
    f.write(buf.getbuffer())
    f.close()


def main(steps=240, save_every=120):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs("store", exist_ok=True)
    torch.manual_seed(0)
    d = 512
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(1000, d), nn.Linear(d, d), nn.GELU(), nn.Linear(d, d), nn.GELU(),
                                                  nn.Linear(d, 1000)))
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    history = []
    for step in range(1, steps + 1):
        x = torch.randint(0, 1000, (16,), generator=g)
        loss = nn.functional.cross_entropy(model(x), (x * 7 + 3) % 1000)
        model.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        if step % save_every == 0:
            save(opt.optim.state_dict(), f"store/optim-{step}.rank{rank}", rank)
            dist.barrier()
            if step > save_every:
                os.unlink(f"store/optim-{step - save_every}.rank{rank}")
    dist.barrier()
    os.unlink(f"store/optim-{steps}.rank{rank}")
    if rank == 0:
        sys.stdout.write(f"done, loss {history[0]:.3f} -> {history[-1]:.3f}\n")
    dist.destroy_process_group()


main()
