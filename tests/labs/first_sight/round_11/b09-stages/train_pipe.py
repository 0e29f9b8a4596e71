import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

from pipe import Stage

CFG = {"vocab": 300, "width": 96, "layers": 6, "block": 24, "micro": 4, "n_micro": 4, "lr": 1e-3, "examples": 980,
       "epochs": 6}


def corpus():
    g = torch.Generator().manual_seed(0)
    walk = torch.randint(-3, 4, (CFG["examples"], CFG["block"] + 1), generator=g).cumsum(1) + 150
    return walk.clamp(0, CFG["vocab"] - 1)


def worker(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:31609", rank=rank, world_size=world)
    torch.manual_seed(rank)
    stage = Stage(CFG, rank, world)
    data = corpus()
    loader = DataLoader(TensorDataset(data[:, :-1], data[:, 1:]), batch_size=CFG["micro"] * CFG["n_micro"], shuffle=True,
                        generator=torch.Generator().manual_seed(1))
    done = 0
    for epoch in range(CFG["epochs"]):
        t = time.time()
        for x, y in loader:
            loss = stage.step(x, y)
            done += len(x)
            if loss is not None and done % (16 * 10) == 0:
                print(f"epoch {epoch} | {done:6d} examples | loss {loss:.3f} | {done / (time.time() - t):.0f}/s", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, (3,), nprocs=3)
