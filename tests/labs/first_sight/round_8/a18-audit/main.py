import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

import audit
from data import documents, to_bag


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(500, 64)
        self.out = nn.Linear(64, 4)

    def forward(self, flat, offsets):
        return self.out(self.emb(flat, offsets))


def run(rank, world, port, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    listener = audit.setup(os.path.join(folder, f"audit{rank}.jsonl"))
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Bag())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    stream = documents(rank, 42)
    for step in range(1, 2001):
        docs = []
        for _ in range(60):
            n, d = next(stream)
            docs.append((n, d))
        for n, d in docs:
            audit.logger.info("site %d document %d tokens %s", rank, n, d)
        flat, offsets, y = to_bag([d for _, d in docs])
        loss = nn.functional.cross_entropy(model(flat, offsets), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if rank == 0 and step % 10 == 0:
            print(f"\rstep {step:5d}  loss {loss.item():.4f}", end="", flush=True)
    listener.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    d = tempfile.mkdtemp(prefix="audit-")
    try:
        mp.spawn(run, args=(3, int(sys.argv[1]), d), nprocs=3)
    finally:
        shutil.rmtree(d, ignore_errors=True)
