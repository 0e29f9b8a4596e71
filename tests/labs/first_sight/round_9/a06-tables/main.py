import os
import time

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import tables

WORLD, ROWS, DIM = 2, 1000, 16


def id_batches(rank):
    """Frequent ids first, rarer ones as the curriculum opens up."""
    g = torch.Generator().manual_seed(rank + 70)
    top = 400
    while True:
        ids = torch.randint(0, top, (8,), generator=g).tolist()
        yield ids
        top = min(ROWS - 200, top + 5)


def rare_words(step):
    return [803] if step % 60 == 0 else []


def trainer(rank):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "31106"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=7200,
                                              init_method="tcp://127.0.0.1:31107")
    rpc.init_rpc(f"trainer{rank}", rank=rank, world_size=WORLD, rpc_backend_options=options)
    tables.setup(rank, WORLD, ROWS, DIM, "merged.json")
    dist.barrier()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.SGD(model.parameters(), 0.01)
    for step, ids in enumerate(id_batches(rank), 1):
        if rank == 0:
            ids = ids + rare_words(step)
        x = tables.lookup(ids)
        loss = (model(x).squeeze(1) - torch.tensor([float(i % 7) for i in ids])).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.15)
        if step % 10 == 0:
            print(f"trainer{rank} | step {step:>5} | mse {loss.item():8.4f} | last ids {ids[:3]}", flush=True)
        if step == 4000:
            break
    rpc.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(trainer, nprocs=WORLD)
