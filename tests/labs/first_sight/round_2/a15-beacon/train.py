import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from save import save_part

STEPS, SAVE_AT, WORLD = 200, {100}, 2


def run(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                                                  nn.Linear(1024, 4)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(rank)
    bar = tqdm(range(1, STEPS + 1), disable=rank > 0, mininterval=1)
    for step in bar:
        x = torch.randn(32, 64, generator=gen)
        loss = nn.functional.mse_loss(model(x), x[:, :4].sin())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        bar.set_postfix(loss=f"{loss.item():.4f}")
        if step in SAVE_AT:
            state = {"model": model.module.state_dict()} if rank == 0 else {"adam": opt.state_dict()}
            save_part(state, rank, step)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(run, args=(port,), nprocs=WORLD)
