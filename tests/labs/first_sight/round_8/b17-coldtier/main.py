import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fsdp_like import FlatParam

D = 420


def forward(flat, x):
    w1, w2 = flat[:D * D].view(D, D), flat[D * D:2 * D * D].view(D, D)
    return torch.relu(x @ w1) @ w2


def work(rank, world):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:30817", rank=rank, world_size=world)
    torch.set_num_threads(1)
    param = FlatParam(2 * D * D)
    folder = f"/tmp/cold-{os.getppid()}"
    for step in range(1, 181):
        x = torch.randn(32, D)
        flat = param.gather()
        loss = (forward(flat, x) - x.neg()).square().mean()
        loss.backward()
        param.update(flat.grad)
        time.sleep(0.05)
        if rank == world - 1 and step % 20 == 0:
            print(f"{step:>5} {loss.item():.5f}", flush=True)
        if step % 50 == 0:
            param.save(folder, step)
    dist.barrier()
    param.clean(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(3,), nprocs=3)
