import os
import random
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sampler import Curriculum

STATE = {"step": 0, "loss": float("nan")}


def fit(rank, world):
    rng = random.Random(100 + rank)
    # a document is (difficulty, seed); the parts come from two crawls
    hardest = 1.0 if rank == 0 else 0.62
    docs = [(rng.random() * hardest, rng.randrange(1 << 30)) for _ in range(3000)]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 80), nn.SiLU(), nn.Linear(80, 4)))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, batch in enumerate(Curriculum(docs, batch_size=12, steps=240, seed=rank)):
        x = torch.stack([torch.randn(40, generator=torch.Generator().manual_seed(seed)) for _, seed in batch])
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        STATE.update(step=step, loss=loss.item())
        time.sleep(0.12)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    worker = threading.Thread(target=fit, args=(rank, dist.get_world_size()), name="fit")
    worker.start()
    began = time.time()
    while worker.is_alive():
        print(f"[{rank}] up {time.time() - began:.0f}s pid {os.getpid()} {threading.active_count()} threads", flush=True)
        worker.join(5)
    print(f"[{rank}] last loss {STATE['loss']:.4f} at {STATE['step']}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
