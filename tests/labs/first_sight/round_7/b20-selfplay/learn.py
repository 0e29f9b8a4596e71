import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROUNDS = 5


def games(path):
    while not os.path.exists(path):
        time.sleep(2.0)
    return torch.from_numpy(np.load(path))


def learn(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh()))
    opt = torch.optim.SGD(model.parameters(), 0.05)
    for k in range(ROUNDS):
        x = games(os.path.join(folder, f"round{k}.npy"))[rank::world]
        y = x[:, :3].sum(1, keepdim=True).sign()
        for _ in range(10):
            loss = nn.functional.mse_loss(model(x[:256]), y[:256])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            torch.save(model.module.state_dict(), os.path.join(folder, "weights.pt"))
    if rank == 0:
        print("value loss", round(loss.item(), 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="selfplay-") as folder:
        player = subprocess.Popen([sys.executable, "games.py", folder, str(ROUNDS)])
        mp.spawn(learn, args=(2, folder), nprocs=2)
        player.wait()
