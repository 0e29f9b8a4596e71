import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from evaluation import samples, scores
from tracker import Tracker


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    where = [tempfile.mkdtemp(prefix="run-") if rank == 0 else None]
    dist.broadcast_object_list(where)
    tracker = Tracker(os.path.join(where[0], "metrics.db"), rank)
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 2)))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(1, 3001):
        x = torch.randn(32, 20)
        loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.15)
        if step % 5 == 0:
            with tracker.batch():
                tracker.log(step, "loss", loss.item())
        if step % 50 == 0 and rank == 0:
            print(f"{step} {loss.item():.4f}", flush=True)
        if step % 120 == 0:
            if rank == 0:
                with open(os.path.join(where[0], f"samples-{step}.txt"), "w") as f:
                    for line in samples(model):
                        print(*line, file=f)
                        time.sleep(0.05)
            with tracker.batch():
                for name, value in scores(model, rank):
                    tracker.log(step, f"acc/{name}", value)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
